"""How long will the answer be? Keyed history, learned quantiles, online calibration; see docs/predictor.md."""

from controller.predictor.prediction import Prediction, Source
from controller.predictor.predictor import LengthPredictor

__all__ = ["LengthPredictor", "Prediction", "Source"]
