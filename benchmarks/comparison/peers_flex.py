"""PyTorch's flex_attention, compiled for every shape by itself, with a block mask."""

from comparison import masks

MOST_SHAPES = 512


def settings():
    """A graph is kept for many backward passes, and no shape is ever run uncompiled."""
    import torch._dynamo
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    torch._dynamo.config.accumulated_recompile_limit = MOST_SHAPES


def visible(mask):
    """Whether a query sees a key, as flex asks it."""
    left, right = mask

    def both(batch, head, query, key):
        return (query - key <= left) & (key - query <= right)

    def only_left(batch, head, query, key):
        return query - key <= left

    def only_right(batch, head, query, key):
        return key - query <= right

    return both if min(mask) >= 0 else only_left if left >= 0 else only_right


def flex(case):
    """flex_attention on BSHD tensors."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    settings()
    options = {"enable_gqa": case.key_heads != case.heads}
    if case.mask != masks.FULL:
        rows = case.rows
        options["block_mask"] = create_block_mask(visible(case.mask), None, None, rows, rows, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def attention(q, k, v):
        views = (t.transpose(1, 2) for t in (q, k, v))
        return compiled(*views, **options).transpose(1, 2)

    return attention
