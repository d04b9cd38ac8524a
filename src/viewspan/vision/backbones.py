"""Image encoders at the published sizes: any number of channels, any image size, 512-d unit embeddings.

A backbone is any callable that gives an `nn.Module`: it is called with the arguments `channels` and `size` it has,
so `torchvision.models.resnet18` or a class of your own can be used as it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from viewspan import checks
from viewspan.images import named

Backbone = Callable[..., nn.Module]
FEATURES = 512


def resnet18(channels: int = 3, size: tuple[int, int] = (32, 32)) -> nn.Module:
    """ResNet-18 with the ImageNet stem (7×7, stride 2, then pooling) and no last layer: 512 features, 11.2 M weights.

    Args:
        channels: of the images; the first convolution takes as many.
        size: (height, width) of the views; any, the network averages over positions.
    """
    from torchvision.models import resnet18 as build

    net = build(weights=None)
    net.fc = nn.Identity()
    for part in net.modules():
        if type(part) is nn.Conv2d and part.kernel_size == (3, 3):
            part.__class__ = SmallMapConv
    if channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return net


class SmallMapConv(nn.Conv2d):
    """A 3×3 convolution that is one matrix product where the map is smaller than the kernel.

    On maps of at most 2×2 (4×4 with stride 2) most of a convolution's products are with padding: a 3×3 kernel on one
    position uses one tap of nine. There the same linear map is written as a matrix of its taps, which a CPU multiplies
    ten to a hundred times faster. Weights, state and values (up to rounding) are those of `nn.Conv2d`.
    """

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        stride = self.stride[0]
        if x.device.type != "cpu" or height * width > (4 if stride == 1 else 16):
            return super().forward(x)
        down, across = (self._taps(extent, stride) for extent in (height, width))
        # (out, in, to row, to column, from row, from column); taps outside the kernel are zero
        spread = nn.functional.pad(self.weight, (width - 1, width - 1, height - 1, height - 1))
        spread = spread[:, :, down[:, None, :, None], across[None, :, None, :]]
        rows, columns = len(down), len(across)
        matrix = spread.permute(2, 3, 0, 4, 5, 1).reshape(rows * columns * self.out_channels, -1)
        flat = x.permute(0, 2, 3, 1).reshape(len(x), -1)
        out = nn.functional.linear(flat, matrix).reshape(len(x), rows, columns, self.out_channels)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def _taps(extent: int, stride: int) -> Tensor:
        """Which tap of the padded kernel connects input j to output i along one side, (outputs, inputs)."""
        outputs = (extent - 1) // stride + 1
        return torch.arange(extent)[None] - stride * torch.arange(outputs)[:, None] + extent


def vit(
    channels: int = 3,
    size: tuple[int, int] = (32, 32),
    *,
    patch: int = 4,
    width: int = 384,
    layers: int = 6,
    heads: int = 6,
    hidden: int = 1536,
    out_dim: int = FEATURES,
) -> nn.Module:
    """Vision transformer on 4×4 patches: width 384, 6 layers, 6 heads, hidden 1536, linear to 512: 10.9 M weights.

    Args:
        channels: of the images.
        size: (height, width) of the views: square, a multiple of `patch`.
        patch: side of a patch in pixels.
        width: features of a token.
        layers: of attention and two linear maps.
        heads: of attention in a layer.
        hidden: features between the two linear maps.
        out_dim: features of the embedding.
    """
    from torchvision.models import VisionTransformer

    class Transformer(VisionTransformer):
        """With plain attention: on a CPU the fused kernel costs more than all else at so few tokens."""

        def forward(self, x: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH) if x.device.type == "cpu" else contextlib.nullcontext():
                return super().forward(x)

    if size[0] != size[1] or size[0] % patch:
        raise ValueError(f"size must be square and a multiple of patch={patch} for vit, got {size}")
    net = Transformer(size[0], patch, layers, heads, width, hidden, num_classes=out_dim)
    if channels != 3:
        net.conv_proj = nn.Conv2d(channels, width, patch, stride=patch)
    head = net.heads.head
    nn.init.trunc_normal_(
        head.weight, std=0.02
    )  # torchvision starts it at zero: embeddings without direction
    return net


def mlp(
    channels: int = 3,
    size: tuple[int, int] = (32, 32),
    *,
    width: int = 2048,
    layers: int = 3,
    dropout: float = 0.1,
    out_dim: int = FEATURES,
) -> nn.Module:
    """MLP on raw pixels: 3 × (linear 2048, BatchNorm, GELU, dropout .1), linear to 512: 15.8 M weights at 3×32×32.

    Args:
        channels: of the images.
        size: (height, width) of the views.
        width: features of a hidden layer.
        layers: hidden ones.
        dropout: share of features dropped in training, in [0, 1).
        out_dim: features of the embedding.
    """
    parts: list[nn.Module] = [nn.Flatten()]
    n_in = channels * size[0] * size[1]
    for _ in range(layers):
        parts += [nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(dropout)]
        n_in = width
    return nn.Sequential(*parts, nn.Linear(n_in, out_dim))


def convnet(channels: int = 3, size: tuple[int, int] = (32, 32), *, width: int = 32) -> nn.Module:
    """Five 3×3 convolutions with BatchNorm, four scales, then the average over positions: trains on a CPU in minutes.

    Not a published encoder: 8 · `width` features (256), 1.0 M weights, full resolution in its first layer.

    Args:
        channels: of the images.
        size: (height, width) of the views; any.
        width: channels of the first layer; doubled at each of three halvings of the size.
    """
    parts: list[nn.Module] = []
    for n_in, n_out, stride in (
        (channels, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2), (4 * width, 8 * width, 2),
        (8 * width, 8 * width, 1),
    ):  # fmt: skip
        parts += [nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Encoder(nn.Module):
    """A backbone with an optional projection head: images in [0, 1] to unit embeddings.

    `features` is what a probe reads: the backbone's output, before the head and before normalising.

    Args:
        backbone: (n, C, H, W) -> (n, features) (more dimensions are flattened).
        head: ``none``, as published, or ``mlp``: linear, ReLU, linear to 128 (SimCLR), used in training only.
        shape: (C, H, W) of the images it takes.
    """

    def __init__(self, backbone: nn.Module, *, head: str = "none", shape: tuple[int, int, int]) -> None:
        super().__init__()
        checks.choice("head", head, ("none", "mlp"))
        self.backbone = backbone
        self.shape = shape
        self.head: nn.Module = nn.Identity()
        lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in backbone.parameters())
        d = self._width() if lazy or head == "mlp" else 0  # the first call gives lazy layers their sizes
        if head == "mlp":
            self.head = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 128))

    def _width(self) -> int:
        was = self.training
        self.eval()
        with torch.no_grad():
            width = self.features(torch.zeros(1, *self.shape)).shape[1]
        self.train(was)
        return width

    def features(self, images: Tensor) -> Tensor:
        """Backbone features, (n, C, H, W) in [0, 1] -> (n, d)."""
        with named.blamed(f"encoder {type(self.backbone).__name__} failed on images {tuple(images.shape)}"):
            out = self.backbone(images)
        if not isinstance(out, Tensor) or out.ndim < 2 or len(out) != len(images):
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"encoder must map ({len(images)}, C, H, W) to ({len(images)}, d), got {got}")
        if not out.is_floating_point():
            raise ValueError(f"encoder must give floating-point features, got {out.dtype}")
        return out.flatten(1)

    def project(self, images: Tensor) -> Tensor:
        """Embeddings before normalising, (n, C, H, W) -> (n, d)."""
        return self.head(self.features(images))

    def forward(self, images: Tensor) -> Tensor:
        """Unit embeddings in float32, (n, C, H, W) -> (n, d). A zero row stays zero."""
        return nn.functional.normalize(self.project(images).float(), dim=1)


def build(backbone: Backbone | nn.Module, shape: tuple[int, int, int], *, head: str, seed: int) -> Encoder:
    """An encoder with weights drawn from `seed`; the caller's random state is left as it was.

    Args:
        backbone: a callable that gives an `nn.Module`, or a module (copied; its weights are kept).
        shape: (C, H, W) of the views.
        head: ``none`` or ``mlp``.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = copy.deepcopy(backbone) if isinstance(backbone, nn.Module) else _call(backbone, shape)
        if not isinstance(net, nn.Module):
            raise TypeError(f"encoder must give a torch.nn.Module, got {type(net).__name__}")
        return Encoder(net, head=head, shape=shape)


def _call(backbone: Backbone, shape: tuple[int, int, int]) -> Any:
    """Call with those of `channels` and `size` that it takes."""
    if not callable(backbone):
        raise TypeError(f"encoder must be a module or a callable that gives one, got {backbone!r}")
    offered = {"channels": shape[0], "size": (shape[1], shape[2])}
    try:
        parameters = inspect.signature(backbone).parameters
    except ValueError:
        raise TypeError(f"encoder {described(backbone)} has no signature: wrap it in a function") from None
    needed = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in offered
    ]
    if needed:
        raise TypeError(
            f"encoder {described(backbone)} needs {', '.join(needed)}; only channels and size are given: "
            "wrap it in a function that sets the rest"
        )
    with named.blamed(f"encoder {described(backbone)} cannot be built"):
        return backbone(**{k: v for k, v in offered.items() if k in parameters})


def weights_digest(encoder: nn.Module) -> str:
    """One hash of an encoder's weights."""
    parts = [v.detach().cpu().flatten().view(torch.uint8) for v in encoder.state_dict().values()]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]


def name(backbone: Backbone | nn.Module) -> str | None:
    """``package.module:name`` under which a backbone can be imported again, or None."""
    module, attribute = getattr(backbone, "__module__", None), getattr(backbone, "__qualname__", None)
    if not module or not attribute or module == "__main__" or "<" in attribute or "." in attribute:
        return None
    return f"{module}:{attribute}"


def described(backbone: Backbone | nn.Module) -> str:
    """A backbone in words: the name it can be imported by, if it has one."""
    if isinstance(backbone, functools.partial):
        given = [repr(a) for a in backbone.args] + [f"{k}={v!r}" for k, v in backbone.keywords.items()]
        return f"{described(backbone.func)}({', '.join(given)})"
    if isinstance(backbone, nn.Module):
        return f"{type(backbone).__name__} of given weights {weights_digest(backbone)}"
    return name(backbone) or str(getattr(backbone, "__qualname__", type(backbone).__name__))
