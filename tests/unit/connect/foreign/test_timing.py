"""Steps of an engine, as its answers tell of them."""

from inlay.connect.foreign.timing import StepTimes
from inlay.core.instance_messages import StepSample


def test_a_prompt_alone():
    times = StepTimes(prefill_chunk=100)
    choice = times.asked(0, 100, 1.0)
    assert choice.todo == 100
    times.came(choice, 1, 1.5)
    assert times.take() == (StepSample(100, 5050, 0, 0, 0.5),)
    assert (choice.todo, choice.context) == (0, 101)
    times.ended(choice)
    behind = times.asked(200, 500, 2.0)  # three steps, behind what the cache has
    times.came(behind, 1, 2.3)
    (sample,) = times.take()
    assert (sample.prefill_tokens, sample.prefill_pairs) == (100, 300 * 701 // 2 // 3)
    assert abs(sample.seconds - 0.1) < 1e-9


def test_prompts_that_meet_are_not_counted():
    times = StepTimes(100)
    first, second = times.asked(0, 50, 1.0), times.asked(0, 50, 1.1)
    times.came(first, 1, 1.4)
    times.came(first, 1, 1.5)  # the other one's prompt is in this step
    times.came(second, 1, 1.6)
    times.came(first, 1, 1.7)  # and in this one
    assert times.take() == ()
    for step in range(5):
        assert times.take() == ()
        times.came(second, 1, 1.7 + step / 10)
        times.came(first, 1, 1.8 + step / 10)
    (sample,) = times.take()
    assert (sample.prefill_tokens, sample.decodes) == (0, 2)
    assert abs(sample.seconds - 0.1) < 1e-9
    assert sample.decode_context == (53 + 52 + 57 + 57) // 2  # at their first and last steps


def test_a_prompt_beside_decodes():
    times = StepTimes(100)
    old = times.asked(0, 10, 0.0)
    times.came(old, 1, 0.1)
    times.take()
    new = times.asked(0, 60, 1.0)
    times.came(new, 1, 1.2)
    (sample,) = times.take()
    assert (sample.prefill_tokens, sample.decodes, sample.decode_context) == (60, 1, 11)


def test_steps_whose_tokens_come_together_are_one_sample():
    times = StepTimes(100)
    choice = times.asked(0, 10, 0.0)
    times.came(choice, 1, 0.1)
    times.take()
    times.came(choice, 8, 0.9)
    (sample,) = times.take()
    assert abs(sample.seconds - 0.1) < 1e-9
    # Events that were read at once, behind one that was late.
    for now_s in (1.3, 1.3, 1.3, 1.3, 1.4):
        times.came(choice, 1, now_s)
    (sample,) = times.take()
    assert abs(sample.seconds - 0.1) < 1e-9


def test_steps_of_other_choices_are_another_sample():
    times = StepTimes(100)
    first, second = times.asked(0, 10, 0.0), times.asked(0, 10, 0.0)
    times.came(first, 1, 0.1)
    times.came(second, 1, 0.1)
    for now_s in (0.3, 0.5, 0.7):
        times.came(second, 1, now_s)
        times.came(first, 1, now_s)
    times.ended(second)
    for now_s in (0.8, 0.9, 1.0, 1.1, 1.2):
        times.came(first, 1, now_s)
    (sample,) = times.take()
    assert sample.decodes == 1
    assert abs(sample.seconds - 0.1) < 1e-9
