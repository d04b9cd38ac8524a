"""Images: loading them once as uint8, and drawing views of them.

`load` turns a folder, CIFAR-10, an `.npz` or a user's own object into an `ImageSet`; `views.resolve` turns a
regime's name, a YAML file or any callable into a `ViewPipeline`.
"""

from __future__ import annotations

from viewspan.images import views
from viewspan.images.data import ImageSet, load

__all__ = ["ImageSet", "load", "views"]
