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
