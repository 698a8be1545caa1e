from benchmarks.kills import survive


def test_killed_at_random_moments_a_run_ends_as_an_undisturbed_one(tmp_path):
    runs, _ = survive(tmp_path, kills=5, seed=1)
    assert runs >= 1
