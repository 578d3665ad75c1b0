"""Another class takes nothing over from the one that it replaces."""

import pytest
import yaml

from phalanx.cli.main import main


def configuration(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    with pytest.raises(SystemExit) as stop:
        main(["run", *arguments, "--print_config"])
    assert stop.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_a_default_of_the_default_algorithm_is_not_taken_over(capsys):
    """FedAvg weighs by reported size, Byzantine CFL does not."""
    chosen = configuration(capsys, "--algorithm", "ByzantineCFL")["algorithm"]["init_args"]
    assert chosen["preprocess"]["class_path"] == "phalanx.weighting.Ignore"
    chosen = configuration(capsys, "--algorithm", "ByzantineCFL", "--algorithm.preprocess", "Truncate")["algorithm"]
    assert chosen["init_args"]["preprocess"]["class_path"] == "phalanx.weighting.Truncate"


def test_a_subcommand_of_the_same_name_as_an_option_is_no_class(capsys):
    assert main(["partition", "--clients", "3", "--partition", "Dirichlet"]) == 0
    assert "dealt to 3 clients by Dirichlet" in capsys.readouterr().out


FILE = """
algorithm:
  class_path: FedAvg
  init_args: {preprocess: Truncate, server_lr: 0.5}
partition: {class_path: Uniform, init_args: {allow_empty: true}}
"""


def test_nor_an_option_of_the_class_in_a_file(capsys, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    config = ("--config", str(tmp_path / "run.yaml"))
    same = configuration(capsys, *config, "--algorithm", "FedAvg", "--algorithm.aggregate", "Median")["algorithm"]
    assert same["init_args"]["preprocess"]["class_path"] == "phalanx.weighting.Truncate"
    assert same["init_args"]["server_lr"] == 0.5
    other = configuration(capsys, *config, "--algorithm", "ByzantineCFL", "--partition", "Dirichlet")
    assert other["algorithm"]["init_args"]["preprocess"]["class_path"] == "phalanx.weighting.Ignore"
    assert other["partition"]["init_args"]["allow_empty"] is False
