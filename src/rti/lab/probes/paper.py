"""What the paper measured on its models, to be drawn beside ours."""

MODEL, SIZE = "paper, MiniT2I-B/16", (512, 512)

# "Token redundancy in a pretrained pixel diffusion model", R = 256 of 1024 patches.
BY_BLOCK = {
    "adaptive": (
        *(0.614, 0.675, 0.713, 0.729, 0.735, 0.739, 0.740, 0.741, 0.749, 0.747, 0.740, 0.732, 0.723, 0.721, 0.717),
        *(0.688, 0.719),
    ),
    "fixed": (
        *(0.534, 0.605, 0.647, 0.661, 0.669, 0.673, 0.674, 0.678, 0.687, 0.687, 0.683, 0.681, 0.666, 0.655, 0.646),
        *(0.620, 0.686),
    ),
    "skip": (
        *(0.353, 0.370, 0.371, 0.374, 0.376, 0.378, 0.378, 0.378, 0.383, 0.383, 0.391, 0.396, 0.403, 0.394, 0.416),
        *(0.413, 0.306),
    ),
}
TIMES = (0.03, 0.17, 0.30, 0.43, 0.53, 0.67, 0.80, 0.93)
BY_STEP = {
    "adaptive": (0.631, 0.686, 0.717, 0.739, 0.751, 0.768, 0.783, 0.814),
    "fixed": (0.618, 0.668, 0.680, 0.682, 0.682, 0.682, 0.681, 0.697),
    "skip": (0.335, 0.348, 0.359, 0.371, 0.382, 0.402, 0.427, 0.454),
}
IN_TOP = {0.15: 0.524, 0.50: 0.882}  # share of detail in the most detailed patches

# "The three measurements", R = 256: spread in cells of a 32 x 32 grid, size-detail, retained.
GROUPINGS = {
    "gaps of the features (paper)": (0.49, 0.50, 0.73),
    "fixed boundaries": (0.71, 0.00, 0.67),
    "feature similarity": (5.16, 0.03, 0.74),
    "latent array": (11.35, 0.20, -0.08),
    "token skip": (None, None, 0.26),
}
ORDERS = {"hilbert": (0.735, 1.49), "morton": (0.720, 1.73), "raster": (0.697, 3.85)}  # retained, spread per patch
SIZE_DETAIL_TRAINED, DETAIL_RATIO_LATE = 0.58, 6.0  # R = 256 mid-sampling; about, at the end
