"""A search for the learning rate: Optuna prunes trials that fall behind.  Needs `pip install optuna`.

python examples/optuna_pruning.py 20
"""

import sys

import optuna

from phalanx import LocalSGD, Progress, Run, StopRunError, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import Rescale


class Pruning:
    """An observer that stops a run when Optuna gives its trial up."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def __call__(self, progress: Progress) -> None:
        if progress.metrics is not None and progress.metrics.accuracy is not None:
            self.trial.report(progress.metrics.accuracy, progress.step)
            if self.trial.should_prune():
                raise StopRunError("pruned")


def objective(trial: optuna.Trial, steps: int = 15) -> float:
    plan = Run(
        algorithm=FedAvg(Median()),
        attack=Rescale(-10.0),
        byzantine=0.3,
        training=LocalSGD(lr=trial.suggest_float("lr", 1e-3, 1.0, log=True)),
        until=Until(steps),
    )
    record = simulate(plan, observers=[Pruning(trial)])
    if record.summary.error == "pruned":
        raise optuna.TrialPruned
    return record.summary.final.accuracy or 0.0


if __name__ == "__main__":
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner(3)
    )
    study.optimize(objective, n_trials=int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"best: lr {study.best_params['lr']:.3g}, accuracy {study.best_value:.3f}; {pruned} trials pruned")
