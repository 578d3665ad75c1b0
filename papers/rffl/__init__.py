"""Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020.

Where the paper is silent, or contradicts itself or its program:

* Three forms of RFFL are shown.  "RFFL" is Algorithm 1 with updates no longer than the median one, "RFFL, Gamma" the
  same with the fixed largest norm of the authors' program, without one of which the algorithm excludes the honest.
  "RFFL, replaced" is ours: `RFFL(own="replaced", min_coherence=1.5)`.
* Accuracies are those on the test images.  The authors' program reports them on a tenth of the training images.
* The "power law" is a linear ramp, as in the program.  Class imbalance deals without replacement.
* Attackers are in addition to the honest participants, and hold as many examples as one of these on average.
* "FedAvg, Gamma" is ours: the mean of updates no longer than Gamma, so that RFFL and a rival have the same limit.
* FedAvg weighs by declared sizes, as the paper has it.  Multi-Krum, Median and SignSGD ignore them.
* Multi-Krum averages 80 % of the updates ("clip ratio 0.2"), and f is the number of the others: two of twelve,
  or four of 21.
* SignSGD has no weight decay: the paper's 0.977 is the number of the learning rates' decay.  Its own learning rate,
  which the paper does not tell, is 0.01 and falls to a tenth of that.
* FedAvg and q-FFL have one more local epoch where fairness or the best accuracy is measured.  In the tables with
  attackers nobody has: it would show what an epoch on one's own data is worth.
"""

from phalanx.experiments.papers.experiment import Paper

PAPER = Paper(
    name="rffl",
    title="Towards Building a Robust and Fair Federated Learning System",
    citation="X. Xu, L. Lyu, 2020, arXiv:2011.10464",
)
