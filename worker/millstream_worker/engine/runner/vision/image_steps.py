"""Computes the steps in which images stand: the features in the place of their tokens' embeddings, and then
the model's layers. All other steps go their own way."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.vision.image_features import ImageFeatures


@dataclass(frozen=True, slots=True, eq=False)
class ImageSteps:
    """`eager`: the model as it is called from Python."""

    eager: Eager
    images: ImageFeatures

    def encode(self, plan: Plan) -> float:
        """Encode the units that come before the step; returns the seconds that it took."""
        return self.images.encode(plan.encodes) if plan.encodes else 0.0

    def run(self, plan: Plan) -> Tensor:
        """Returns the answer of the plan's head, as `Forward.run` does. Its images are encoded."""
        self.eager.begin(plan)
        tokens, positions, wanted = self.eager.inputs(plan)
        loaded = self.eager.loaded
        embeddings = self.images.put_into(loaded.model.get_input_embeddings()(tokens), plan.images)
        return loaded.heads.of_embeddings(plan.head, embeddings, positions, wanted)
