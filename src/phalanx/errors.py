"""The errors that end a round or a run.  They are defined apart from `phalanx.core`, which imports torch."""


class InfeasibleError(ValueError):
    """The settings, the clients or the updates do not allow what was requested.

    The message says what was expected, what was there, and the remedy.
    """


class TooFewError(InfeasibleError):
    """There are fewer updates, or clients, than are needed; with more of them it can be done."""


class NotInRecordError(LookupError):
    """The record of a run does not have what was asked for: models, the model of a client, or a schema.

    The message says what it has, or how a run keeps it.
    """


class StalledError(RuntimeError):
    """The run cannot go on: no client is left that could send the next update.

    The message says who is missing and why.
    """
