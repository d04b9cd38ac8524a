"""What the loss will prefer, before anyone trains: predictions by quadrature, and certificates of the theory.

- `predict(law, temperature=, rho=)` → `Prediction`: closed forms and quadrature, milliseconds, no training.
- `asymptotic_loss(h, law, temperature=, rho=)`: L∞ of any map, a trained encoder among them.
- `certificates()`: every claim of the theory with its numbers and its verdict.
"""

from viewspan.theory.asymptotic import AsymptoticLoss, asymptotic_loss
from viewspan.theory.prediction import Prediction, Squeeze, floor, predict

__all__ = ["AsymptoticLoss", "Prediction", "Squeeze", "asymptotic_loss", "floor", "predict"]
