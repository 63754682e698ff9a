"""How far ours may be from float64: relative L2 errors. What has no limit here is only reported."""

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


def above(row):
    """A line for every error of ours that is above its limit; NaN is."""
    lines = []
    for who, found in row["relative_l2_error"].items():
        for tensor, error in found.items() if who.startswith("ours") else ():
            most = limit(row["dtype"], row["dim"], tensor)
            if most is not None and not error <= most:
                text = f"{who}: error of {tensor} is {error:.2e}, at most {most:.1e} is allowed"
                lines.append(f"{row['case']} {row['pass']}: {text}")
    return lines
