"""Cox, Malan, Chen and Decouchant, "Asynchronous Byzantine Federated Learning" (Catalyst), 2024.

Each method has two forms: "authors", as in the published program, without its security holes and accidents, and "ours",
as in the paper, corrected.  Where the paper is silent, or its program (which the published numbers
come from) does something else:

* The Byzantine clients are additional: 30 honest clients share the data, 10 more attack; without an attack
  40 honest clients share it.  In the program attackers hold copies of honest clients' data, here a random part.
* Each client holds 7 of the 10 labels; see `populations.LabelsEach`.  A client's time is drawn once for each
  seed; in the program it is the same for all repetitions.
* Batches of 50, one local epoch, momentum 0.5, gradients cut to norm 5: the paper gives none of them.  Momentum starts
  at zero with each download; in the program it lives on.
* Gradient inversion sends -10 times the update, random perturbation adds noise of 0.1 times its length to each entry.
  The program multiplies models with gradients instead.
* FedAsync of the program mixes with the clients' learning rate, 0.05 / (age + 1): next to nothing.  Ours is Xie's, 0.6
  and the root of the age.
* Without an attack, f is 0 in the program: BASGD then has one buffer, which each fresh model overwrites, and Catalyst
  steps on two answers.  So "no attack" is no upper bound of the others.  "f = 10, nobody attacks" is what defences
  cost.
* Kardam's clients compute their own Lipschitz coefficients in the program, attackers before they poison.  Here the
  server does, in both forms.
* A starred number of the paper is the best until its runs broke off; our "best" is next to it.
"""

from phalanx.experiments.papers.experiment import Paper

PAPER = Paper(
    name="catalyst",
    title="Asynchronous Byzantine Federated Learning",
    citation="B. Cox, A. Mălan, L. Y. Chen, J. Decouchant, 2024, arXiv:2406.01438",
)
