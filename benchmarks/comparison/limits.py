"""How far ours are meant to be from float64: relative L2 errors. What has no limit here is only reported."""

O_BF16 = 2.3e-3
GRADIENT_BF16 = 2.6e-3
O_DIMS = (64, 128)


def limit(dtype, dim, tensor):
    """Of o, dq, dk or dv; None if there is none."""
    if dtype != "bfloat16":
        return None
    if tensor == "o":
        return O_BF16 if dim in O_DIMS else None
    return GRADIENT_BF16


def results(found):
    """What the guard found: of each case and pass once, and of rows that had other errors."""
    listed = list(found["guard"])
    known = [(row["case"], row["pass"], row["relative_l2_error"]) for row in listed]
    for row in found["rows"]:
        key = (row["case"], row["pass"], row["relative_l2_error"])
        if key not in known:
            known.append(key)
            listed.append({**row, "dim": row["shape"]["dim"], "refused": {}})
    return listed


def limited(row):
    """(who, tensor, error, limit) for every error of ours that has a limit."""
    for who, found in row["relative_l2_error"].items():
        for tensor, error in found.items() if who.startswith("ours") else ():
            most = limit(row["dtype"], row["dim"], tensor)
            if most is not None:
                yield who, tensor, error, most


def exceeded(row):
    """Those of them that are above; NaN is."""
    return [found for found in limited(row) if not found[2] <= found[3]]


def above(row):
    """A line for each of them."""
    return [f"{row['case']} {row['pass']}: {who}: error of {tensor} is {error:.2e}, at most {most:.1e} is allowed"
            for who, tensor, error, most in exceeded(row)]
