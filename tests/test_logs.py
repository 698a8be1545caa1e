import json
import sys
import types

import pytest
from conftest import train

from engine.errors import UserError
from engine.logs import Log, plot_loss, read_log


def test_log_goes_on_after_the_last_checkpoint(tmp_path):
    log = Log(tmp_path)
    for step in (1, 5, 10, 15):
        log.add(step=step, epoch=0, train_loss=2.5 / step, learning_rate=0.1, grad_norm=1.0, val_loss=0.1 if step == 10 else None)
    whole = (tmp_path / "log.csv").read_bytes()
    with open(tmp_path / "log.csv", "a") as file:
        file.write("20,0,1.")  # cut short by a kill
    log = Log(tmp_path, up_to_step=10)
    assert [row["step"] for row in read_log(tmp_path / "log.csv")] == ["1", "5", "10"]
    log.add(step=15, epoch=0, train_loss=2.5 / 15, learning_rate=0.1, grad_norm=1.0)
    assert (tmp_path / "log.csv").read_bytes() == whole


def test_loss_picture(tmp_path):
    log = Log(tmp_path)
    for step in range(1, 21):
        val_loss = 3 - step / 25 if step % 5 == 0 else None
        log.add(step=step, epoch=0, train_loss=3 - step / 20, val_loss=val_loss, learning_rate=0.1, grad_norm=1.0)
    plot_loss(tmp_path, log.rows, best_step=20)
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


class Recorder:
    """Stands for TensorBoard's writer and for wandb's run: keeps what it is given."""

    def __init__(self, *arguments, **options):
        self.arguments, self.options, self.rows, self.closed = arguments, options, [], False

    def add_scalar(self, name, value, step):
        self.rows.append((step, name, value))

    def log(self, curves, step):
        self.rows += [(step, name, value) for name, value in curves.items()]

    def close(self):
        self.closed = True

    finish = close


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_other_logs_get_the_same_rows(name, tiny_config, tmp_path, monkeypatch):
    made = []

    def make(*arguments, **options):
        made.append(Recorder(*arguments, **options))
        return made[-1]

    module = types.ModuleType(name)
    module.SummaryWriter = module.init = make
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: module)
    train(tiny_config, "--max_steps=20", f"--{name}")
    train(tiny_config, "--max_steps=30", f"--{name}", "--resume")
    rows = [(int(row["step"]), key, float(row[key])) for row in read_log(tmp_path / "out/tiny/log.csv") for key in row if row[key]]
    assert sorted(made[0].rows + made[1].rows) == sorted(row for row in rows if row[1] != "step")
    assert all(recorder.closed for recorder in made)
    if name == "tensorboard":
        assert [recorder.options["purge_step"] for recorder in made] == [1, 21]
    else:
        assert made[0].options["name"] == "tiny" and made[0].options["config"]["n_embd"] == 16
    assert json.loads((tmp_path / "out/tiny/settings.json").read_text())["settings"][name] is True


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_log_whose_package_is_missing(name, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"--{name}: the package {name} is not installed; pip install -e '.\[log\]' would do"):
        train(tiny_config, f"--{name}")
    assert not (tmp_path / "out").exists()
