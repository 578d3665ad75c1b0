"""A custom local training: one step down the gradient over all of a client's examples (FedSGD).

phalanx run --training own_training.OneStep --training.lr 0.2        (from the folder examples)
"""

from dataclasses import dataclass

from phalanx.training import LocalSGD, LocalTrainer


@dataclass(frozen=True)
class OneStep(LocalSGD):
    """As `LocalSGD`, but for its minibatches: only `lr` is used."""

    def trainer(self, model, task, seed):
        step = Step(model, task)
        step.rate = self.learning_rate
        return step


class Step(LocalTrainer):
    def train(self, task, data):
        self.model.load(task.start)
        self.model.gradient.zero_()
        loss = self.task.loss(self.model.module(data.tensor), data.y)
        loss.backward()
        task.row.zero_()[: self.model.trainable] = self.model.gradient * -self.rate(task.version)
        return loss.item()
