"""Save a model as MLflow keeps it, to be served by `mlflow models serve`."""

import sys

import mlflow.pyfunc


class Twice(mlflow.pyfunc.PythonModel):
    """Doubles every cell of a table."""

    def predict(self, context, model_input, params=None):
        """Compute one call."""
        return (model_input * 2).values.tolist()


if __name__ == "__main__":
    mlflow.pyfunc.save_model(sys.argv[1], python_model=Twice())
