"""Errors against the formula in float64, on a few heads. The run stops if ours are too large."""

import math

import torch

CHUNK = 1024  # query rows at a time


def hidden(first, queries, keys, mask, device):
    """Which of `keys` keys the queries from row `first` on do not see; None if they see all."""
    left, right = mask
    ahead = torch.arange(keys, device=device)[None, :]
    ahead = ahead - torch.arange(first, first + queries, device=device)[:, None]
    sides = ([ahead < -left] if left >= 0 else []) + ([ahead > right] if right >= 0 else [])
    return torch.stack(sides).any(dim=0) if sides else None


def exact_slice(q, k, v, d_o, mask, sums):
    """One key head of one sequence, by the formula, in the dtype of the arguments; chunks are added up
    in `sums`. q and do are [rows, group, D], k and v [rows, D]. Without do only o."""
    rows, group, dim = q.shape
    result = {"o": torch.empty(q.shape, device=q.device, dtype=q.dtype)}
    if d_o is not None:
        result |= {"dq": torch.empty_like(q), "dk": torch.zeros_like(k, dtype=sums)}
        result |= {"dv": torch.zeros_like(v, dtype=sums)}
    for head in range(group):
        for first in range(0, rows, CHUNK):
            chunk = slice(first, first + CHUNK)
            queries = q[chunk, head]
            scores = (queries @ k.T) * dim**-0.5
            unseen = hidden(first, len(queries), rows, mask, q.device)
            if unseen is not None:
                scores = scores.masked_fill(unseen, -math.inf)
            p = torch.softmax(scores, dim=-1)
            o = p @ v
            result["o"][chunk, head] = o
            if d_o is None:
                continue
            gradient = d_o[chunk, head]
            delta = (gradient * o).sum(dim=-1, keepdim=True)
            ds = p * (gradient @ v.T - delta) * dim**-0.5
            result["dq"][chunk, head] = ds @ k
            result["dk"] += ds.T @ queries
            result["dv"] += p.T @ gradient
    return result


def errors(case, outputs):
    """Relative L2 errors of every contestant and every tensor; `formula` is the formula in the case's
    own dtype. `outputs` is {contestant: {tensor: BSHD tensor}}."""
    q, k, v, d_o = case.sets[0]
    names = list(next(iter(outputs.values())))
    wants_gradients = "dq" in names
    group = case.heads // case.key_heads
    squares = {contestant: dict.fromkeys(names, 0.0) for contestant in [*outputs, "formula"]}
    norms = dict.fromkeys(names, 0.0)
    for batch, first, rows, head in case.slices():
        at, queries = slice(first, first + rows), slice(head * group, (head + 1) * group)
        per_query = [t[batch, at, queries] if t is not None else None for t in (q, d_o)]
        arguments = [per_query[0], k[batch, at, head], v[batch, at, head]]
        arguments.append(per_query[1] if wants_gradients else None)
        double = [t.double() if t is not None else None for t in arguments]
        exact = exact_slice(*double, case.mask, torch.float64)
        rounded = exact_slice(*arguments, case.mask, torch.float32)
        for name in names:
            heads = queries if name in ("o", "dq") else head
            norms[name] += exact[name].square().sum().item()
            found = {who: tensors[name][batch, at, heads] for who, tensors in outputs.items()}
            found["formula"] = rounded[name]
            for contestant, got in found.items():
                squares[contestant][name] += (got.double() - exact[name]).square().sum().item()
    return {contestant: {name: math.sqrt(square / norms[name]) for name, square in found.items()}
            for contestant, found in squares.items()}


def guard(case, field):
    """Stops the run unless our results are at most twice as far from float64 as the unfused formula."""
    for contestant in field:
        if contestant.name.startswith("ours"):
            contestant.launches[0]()
    torch.cuda.synchronize()
    with torch.no_grad():
        outputs = {contestant.name: contestant.outputs() for contestant in field}
        found = errors(case, outputs)
    for contestant in found:
        for name, error in found[contestant].items() if contestant.startswith("ours") else ():
            limit = 2 * found["formula"][name] + 1e-6  # in f32 both are a few units of the last place
            if not error <= limit:
                text = f"{contestant}: error of {name} is {error:.2e}, expected at most {limit:.2e}"
                raise SystemExit(f"{case.describe()}: {text}")
    return found
