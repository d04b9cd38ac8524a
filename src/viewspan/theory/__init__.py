"""What the loss will prefer, before anyone trains: predictions by quadrature, and certificates of the theory.

- `predict(law, temperature=, rho=)` → `Prediction`: closed forms and quadrature, milliseconds, no training.
- `floor(dim, temperature=)`: what no map can go below under the standard loss.
- `asymptotic_loss(h, law, temperature=, rho=)`: L∞ of any map, a trained encoder among them.
- `fold_cost(law, temperature=)`: what u → |u| costs on pairs that move everything, the unit of a fold.
- `certificates.run_all()`: every claim of the theory with its numbers and its verdict.
- `mixtures`: break-even doses and balancing shares; `maps`: the maps the theory talks about.
"""

from viewspan.theory import certificates, maps, mixtures
from viewspan.theory.asymptotic import AsymptoticLoss, asymptotic_loss
from viewspan.theory.certificates import Certificate
from viewspan.theory.fold import fold_cost
from viewspan.theory.model import floor
from viewspan.theory.optimum import Squeeze
from viewspan.theory.prediction import Prediction, predict

__all__ = [
    "AsymptoticLoss",
    "Certificate",
    "Prediction",
    "Squeeze",
    "asymptotic_loss",
    "certificates",
    "floor",
    "fold_cost",
    "maps",
    "mixtures",
    "predict",
]
