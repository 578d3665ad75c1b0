"""Figures that notebooks show.  Import this module only where something is drawn: matplotlib is slow to import."""

from io import BytesIO

from matplotlib.figure import Figure

DPI = 100


class NotebookFigure(Figure):
    """A figure of matplotlib that a notebook shows, whether or not pyplot was imported.

    It has a white ground of its own, so that it can be read in dark themes as well.
    """

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", dpi=DPI, facecolor="white")
        return out.getvalue()
