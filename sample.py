"""Sample from a trained run: python sample.py [--option=value ...]

    python sample.py                              the newest run under out/, with the options it was trained with
    python sample.py --prompt=jo --prompt=mar --temperature=0.7
    python sample.py --run=names --num_samples=50 --only_new
    python sample.py --prompt="Tell me, O muse" --stream
    python sample.py --interactive                a prompt, a continuation, and again
    python sample.py --beams=5                    the likeliest texts instead of samples
    python sample.py --trace                      one text, and how it came about
    python sample.py --run=names --pronounce=pronounce    names, and how they are said by the model of another run
    python sample.py --run=pronounce --prompt=telemachus  what a model that writes no texts has to say of a prompt

After a list such as the names, a * marks a text that is not in it.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from itertools import chain, groupby, repeat, tee
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch

from config.command_line import parse
from config.settings import Range, SamplingSettings
from data.tokenizers import Tokenizer
from engine import checkpoint
from engine.beams import beam_search
from engine.device import missing_compiler, pick_device, pick_dtype, pick_threads
from engine.errors import UserError, run_program
from engine.files import read_text
from engine.generation import ROWS_AT_ONCE, lay_out
from engine.pronouncing import pronounce
from engine.run_data import data_of
from engine.sampling import Choice
from engine.tasks import Task, task_of_run
from engine.trace import token_name, trace_table, traced
from engine.writing import Piece, Writer, choice_of, encode_prompt, in_order, only_new, page, pieces, texts
from model import GPT
from zoo.seq2seq import Seq2Seq

PENALTY = Range(-100, 100)
CHANCE = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass
class SampleSettings(SamplingSettings):
    """All options of sample.py."""

    prompt: list[str] = field(default_factory=list)
    """What a text begins with; given several times, num_samples texts are written for each. Of other models: a word to pronounce
    or to tell the class of, letters with _ for each to be guessed, the file of a picture."""
    prompt_file: str | None = None
    """Prompts from a file, one a line, or with "prompt" in each line of a .jsonl file; - reads lines from standard input."""
    min_new_tokens: Annotated[int, Range(0, 10_000_000)] = 0
    """No text ends before it has so many tokens."""
    stop: list[str] = field(default_factory=list)
    """End a text where this would come; may be given several times."""
    ban: list[str] = field(default_factory=list)
    """A token never to write, by its text (also [UNK], or the mark of the end); may be given several times."""
    repetition_penalty: Annotated[float, Range(0, 100, above_low=True)] = 1.0
    """Divides the positive logits of tokens in prompt or text, multiplies negative ones: above 1 they come less often."""
    presence_penalty: Annotated[float, PENALTY] = 0.0
    """Taken from the logits of tokens that are in the text so far (the prompt left out)."""
    frequency_penalty: Annotated[float, PENALTY] = 0.0
    """The same, for each time they are there."""
    beams: Annotated[int | None, Range(1, 10_000)] = None
    """Search, with so many beams, for the likeliest texts, and print as many instead of samples."""
    length_penalty: Annotated[float, Range(-10, 10)] = 1.0
    """beams: a text's score is its log-probability / tokens ** length_penalty; 0 favours short texts, 1 compares means per token."""
    context: Literal["exact", "slide"] = "exact"
    """Once the context is full: read its last block_size tokens anew for each, or (rotary positions) go on with what was read,
    which is faster, and another function."""

    stream: bool = False
    """Print a text as it comes."""
    format: Literal["text", "jsonl"] = "text"
    """For people, or a JSON object a line: prompt, text, tokens, log-probability, why it ended."""
    logprobs: bool = False
    """Tell the log-probability of each text in the model; with jsonl that of each token, too."""
    interactive: bool = False
    """Ask for a prompt, continue it, ask again. Ctrl-C stops a text, Ctrl-D ends."""
    trace: bool = False
    """Show how one text comes about: each step's candidates, their probabilities, what was drawn."""
    only_new: bool = False
    """Draw until there are num_samples distinct texts that are not in the training list, or 1,000 in a row brought none."""
    pronounce: str | None = None
    """Name or folder of a run that pronounces (config/zoo/pronounce.py): say how each text, a name, is said."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and cache; auto: 16 bits on a GPU, float32 on a CPU."""
    compile: bool = False
    """Compile the step of a token: a start of 10 to 30 seconds, then faster texts."""
    attention: Literal["auto", "fused", "manual"] = "auto"
    """Attention in one kernel, or written out; both give the same numbers. auto: the faster here."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads on a CPU; None: as many as have enough to do."""
    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""


class Trained(NamedTuple):
    """What a run left behind."""

    folder: Path
    model: GPT
    tokenizer: Tokenizer
    opening: list[int]  # what the model reads before a text
    seen: set[str] | None  # the texts of the list it was trained on; None: it was a long text
    say: Callable[[str], str] | None = None  # how a text is said, if that was asked for


class Sample(NamedTuple):
    """A finished text, with what it was made of."""

    prompt: str
    text: str
    tokens: list[int]  # of the continuation, as they were drawn
    logprobs: list[float]  # of each, in the model; None where nobody asked
    finish: str | None
    score: float | None = None  # of a beam

    @property
    def whole(self) -> str:
        return self.prompt + self.text


def main(arguments: list[str]) -> None:
    asked = parse(SampleSettings, arguments, description=__doc__)
    check_together(asked)
    folder = checkpoint.find_run(asked.run, asked.out_dir)
    description = checkpoint.read_settings(folder)
    try:
        defaults = checkpoint.sampling_settings(description, SampleSettings)
    except UserError as error:
        raise UserError(f"{folder / 'settings.json'} is damaged: {error}") from None
    settings = parse(SampleSettings, arguments, defaults)
    if task := task_of_run(folder, description):
        return show_answers(task, folder, description, asked)
    run = open_run(folder, description, settings)
    if settings.only_new and run.seen is None:
        raise UserError(f"--only_new: {folder} was trained on a text, not on a list of which a sample could be part; leave it out")
    if settings.context == "slide" and run.model.config.position != "rotary":
        raise UserError(f"--context=slide needs rotary positions, which {folder} does not have; --context=exact would do")
    if settings.min_new_tokens > (longest := settings.max_new_tokens or run.model.config.block_size):
        raise UserError(f"min_new_tokens={settings.min_new_tokens} is more than max_new_tokens={longest}; at most as many would fit")
    choice = make_choice(settings, run)
    if settings.interactive:
        return converse(run, settings, choice)
    prompts = read_prompts(settings, run)
    for prompt in prompts:
        note_length(run, prompt)
    if settings.trace:
        return show_trace(run, settings, choice, prompts[0])
    rows = chain.from_iterable(repeat(prompt, settings.num_samples) for prompt in prompts)
    at_once = min(len(prompts) * settings.num_samples, ROWS_AT_ONCE)
    if settings.stream:
        return show_stream(run, settings, choice, rows, at_once)
    drawn = None
    if settings.beams:
        found = chain.from_iterable(searched(run, settings, choice, prompt) for prompt in prompts)
    elif settings.only_new:
        endless = samples(run, settings, choice, repeat(prompts[0]), at_once)
        new, drawn = only_new(endless, {"", *run.seen}, settings.num_samples, lambda sample: sample.whole)
        found = iter(new)
        if len(new) < settings.num_samples:
            print("note: gave up after 1,000 texts of which none was new; a higher --temperature finds more", file=sys.stderr)
    else:
        found = samples(run, settings, choice, rows, at_once)
    show(run, settings, found, drawn)


def check_together(settings: SampleSettings) -> None:
    """Raise UserError for options that do not go together."""
    ways = [name for name in ("interactive", "trace", "stream", "beams", "only_new") if getattr(settings, name)]
    if len(ways) > 1:
        raise UserError(f"--{ways[0]} and --{ways[1]} do not go together; leave one out")
    if settings.pronounce and ways and ways[0] in ("interactive", "trace", "stream"):
        raise UserError(f"--pronounce is for whole texts, not for --{ways[0]}; leave one out")
    if settings.format == "jsonl" and ways and ways[0] in ("interactive", "trace", "stream"):
        raise UserError(f"--format=jsonl is for whole texts, not for --{ways[0]}; leave one out")
    without_meaning = {
        "beams": (*CHANCE, "num_samples", "compile"),
        "trace": ("num_samples", "compile", "logprobs"),
        "interactive": ("num_samples", "logprobs"),
        "stream": ("logprobs",),
        "only_new": (),
    }
    given = {f.name for f in fields(settings) if f.default is not MISSING and getattr(settings, f.name) != f.default}
    for option in without_meaning[ways[0]] if ways else ():
        if option in given:
            raise UserError(f"--{option} means nothing for --{ways[0]}; leave it out")
    if "length_penalty" in given and not settings.beams:
        raise UserError("--length_penalty is for --beams; leave it out")
    if settings.interactive and (settings.prompt or settings.prompt_file):
        raise UserError("--interactive asks for prompts; leave out --prompt and --prompt_file")
    if ways and ways[0] in ("trace", "only_new") and len(settings.prompt) + 2 * bool(settings.prompt_file) > 1:
        raise UserError(f"--{ways[0]} is for a single --prompt")
    if "" in settings.stop:
        raise UserError("--stop= is empty, and would end every text at once; leave it out")


def open_run(folder: Path, description: dict[str, Any], settings: SampleSettings) -> Trained:
    """The run in this folder, its model ready to write."""
    device = pick_device(settings.device)
    if settings.compile and (missing := missing_compiler(device)):
        raise UserError(f"--compile: {missing}; leave it out")
    dtype = torch.float32 if settings.dtype == "auto" and device.type == "cpu" else pick_dtype(settings.dtype, device, 1, 1)[0]
    model, tokenizer = checkpoint.load_run(folder, device)
    if settings.compile and not isinstance(model, GPT):
        raise UserError(f"--compile is for a GPT, and {folder} is another model, {model.config.kind}; leave it out")
    lay_out(model, dtype)
    written_out = settings.compile and device.type == "cpu"  # there the compiler joins the loops of attention to their neighbours
    model.config.attention = settings.attention if settings.attention != "auto" else "manual" if written_out else "fused"
    rows = min(settings.beams or settings.num_samples * max(1, len(settings.prompt)), ROWS_AT_ONCE)
    torch.set_num_threads(settings.threads or pick_threads(10 * 2 * model.num_parameters() * rows))  # one for each 25 MFLOP of a step
    data, opening = description["data"], checkpoint.opening(folder, description, tokenizer)
    seen = read_seen(folder, data.get("documents", {}).get("train")) if data.get("kind") == "rows" else None
    say = opened_speaker(settings, device) if settings.pronounce else None
    return Trained(folder, model, tokenizer, opening, seen, say)


def opened_speaker(settings: SampleSettings, device: torch.device) -> Callable[[str], str]:
    """A function from a text to how it is said; a - for one that cannot be said. Raises UserError for a run that is not of such a model."""
    folder = checkpoint.find_run(settings.pronounce, settings.out_dir, "pronounce")
    model, tokenizer = checkpoint.load_run(folder, device)
    if not isinstance(model, Seq2Seq):
        raise UserError(f"--pronounce={settings.pronounce}: {folder} does not pronounce; a run of config/zoo/pronounce.py would")

    def say(text: str) -> str:
        try:
            return " ".join(pronounce(model, tokenizer, [text])[0][0].sounds)
        except UserError:
            return "-"

    return say


def read_seen(folder: Path, count: int | None) -> set[str]:
    """The training documents of the run in this folder. Raises UserError unless there are `count` of them."""
    path = folder / "seen.txt"
    try:
        seen = set(path.read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; it tells which texts are new: train the run again") from None
    if len(seen) != count:
        raise UserError(f"{path} has {len(seen)} texts, where the run was trained on {count}; train the run again")
    return seen


def make_choice(settings: SampleSettings, run: Trained) -> Choice:
    """How tokens are chosen. Raises UserError for options that leave nothing to choose, and a --ban that is not one token."""
    special = {run.tokenizer.decode([i]): i for i in (run.tokenizer.boundary_id, run.tokenizer.unknown_id) if i is not None}
    banned = []
    for text in settings.ban:
        try:
            ids = [special[text]] if text in special else run.tokenizer.encode(text)
        except UserError as error:
            raise UserError(f"--ban={text!r}: {error}") from None
        if len(ids) != 1:
            parts = f": {' '.join(token_name(i, run.tokenizer) for i in ids)}" if ids else ""
            raise UserError(f"--ban={text!r} is {len(ids)} tokens of {run.folder}{parts}; a single one can be banned")
        banned += ids
    try:
        choice = choice_of(settings, run.tokenizer.boundary_id, banned)
        choice.check_vocabulary(run.model.config.vocab_size)
    except ValueError as error:
        raise UserError(str(error)) from None
    return choice


def read_prompts(settings: SampleSettings, run: Trained) -> list[str]:
    """The prompts, in the form in which the tokenizer sees them; without any, the empty one."""
    seen = []
    for place, prompt in given_prompts(settings) or [("", "")]:
        try:
            seen.append(run.tokenizer.decode(encode_prompt(run.tokenizer, prompt)))
        except UserError as error:
            raise UserError(f"{place}: {error}; the run is {run.folder}") from None
    return seen


def given_prompts(settings: SampleSettings) -> list[tuple[str, str]]:
    """The prompts, each with its place."""
    prompts = [(f"--prompt={prompt!r}", prompt) for prompt in settings.prompt]
    return prompts + (prompts_in(settings.prompt_file) if settings.prompt_file is not None else [])


def prompts_in(name: str) -> list[tuple[str, str]]:
    """The prompts in a file, each with its place. Raises UserError for a file that cannot be read or has none."""
    try:
        if name == "-" and sys.stdin is None:
            raise UserError("--prompt_file=-: standard input is closed; a file with one prompt a line would do")
        if name == "-":
            content = "".join(read_text(sys.stdin.buffer, "standard input"))
        else:
            with open(name, "rb") as file:
                content = "".join(read_text(file, name))
    except OSError as error:
        raise UserError(f"--prompt_file={name}: {error.strerror}; a file with one prompt a line would do") from None
    lines = content.removesuffix("\n").split("\n") if content else []
    if not lines:
        raise UserError(f"--prompt_file={name} is empty; one prompt a line would do")
    prompts = []
    for number, line in enumerate(lines, start=1):
        place = f"{'standard input' if name == '-' else name}:{number}"
        if name.endswith(".jsonl"):
            try:
                line = json.loads(line)["prompt"]
            except (ValueError, KeyError, TypeError, RecursionError):
                line = None
            if not isinstance(line, str):
                raise UserError(f'{place}: no prompt; an object like {{"prompt": "jo"}} in each line would do')
        prompts.append((place, line))
    return prompts


def note_length(run: Trained, prompt: str) -> None:
    """Say so when a prompt does not fit into the context."""
    length, size = len(run.tokenizer.encode(prompt)), run.model.config.block_size
    if len(run.opening) + length > size:
        print(f"note: of a prompt of {length} tokens the model sees the last {min(length, size)}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------------------------
# Writing


def written(
    run: Trained, settings: SampleSettings, choice: Choice, prompts: Iterable[str], rows: int = 1, first_row: int = 0
) -> Iterator[Piece]:
    """Continuations of the prompts, as they come, up to `rows` side by side."""
    return pieces(
        run.model,
        run.tokenizer,
        ([*run.opening, *encode_prompt(run.tokenizer, prompt)] for prompt in prompts),
        settings.max_new_tokens or run.model.config.block_size,
        choice,
        settings.stop,
        first_row,
        seed=settings.seed,
        logprobs=settings.logprobs or settings.format == "jsonl",
        context=settings.context,
        compiled=settings.compile,
        rows_at_once=rows,
    )


def samples(run: Trained, settings: SampleSettings, choice: Choice, prompts: Iterable[str], rows: int) -> Iterator[Sample]:
    """Whole texts, one for each prompt."""
    prompts, again = tee(prompts)
    for prompt, text in zip(again, texts(written(run, settings, choice, prompts, rows)), strict=False):
        logprobs = [token.logprob for token in text.tokens]
        yield Sample(prompt, text.text, [token.id for token in text.tokens], logprobs, text.tokens[-1].finish)


def searched(run: Trained, settings: SampleSettings, choice: Choice, prompt: str) -> Iterator[Sample]:
    """The likeliest continuations of a prompt, best first."""
    ids = [*run.opening, *encode_prompt(run.tokenizer, prompt)]

    def writer(tokens: list[int]) -> tuple[str, Writer]:
        writer = Writer(run.tokenizer, settings.stop, settings.min_new_tokens, ids)
        return "".join(map(writer.add, tokens)), writer

    found = beam_search(
        run.model,
        ids,
        settings.beams,
        settings.max_new_tokens or run.model.config.block_size,
        choice,
        length_penalty=settings.length_penalty,
        ended=(lambda tokens: writer(tokens)[1].ended) if settings.stop else None,
        slide=settings.context == "slide",
    )
    for hypothesis in found:
        tokens = hypothesis.ids[:-1] if hypothesis.finish == "stop_token" else hypothesis.ids
        certain, state = writer(tokens)
        yield Sample(prompt, certain + state.rest(), hypothesis.ids, hypothesis.logprobs, hypothesis.finish, hypothesis.score)


# ------------------------------------------------------------------------------------------------------------------------
# Showing


def show(run: Trained, settings: SampleSettings, found: Iterator[Sample], drawn: int | None) -> None:
    """Print the texts: of a list one a line, with a * before those that are new; others as pages; or as JSON lines.

    drawn: how many texts it took to find these; None: as many.
    """
    count, new = 0, set()
    for sample in found:
        if settings.format == "jsonl":
            print(json.dumps(described(run, settings, sample), ensure_ascii=False), flush=True)
        elif run.seen is not None:
            print(f"{mark(run, sample.whole)} {sample.whole}{remark(run, settings, sample)}")
        else:
            print("\n\n---\n\n" * bool(count) + page(sample.whole) + remark(run, settings, sample))
        count += 1
        if run.seen is not None and mark(run, sample.whole) == "*":
            new.add(sample.whole)
    if run.seen is not None and settings.format == "text":
        summarise(run, len(new), drawn or count, "found" if settings.beams else "drawn")


def mark(run: Trained, text: str) -> str:
    """A * for a text that is not in the list the model was trained on; an empty one is nothing new."""
    return " " if not text or text in run.seen else "*"


def remark(run: Trained, settings: SampleSettings, sample: Sample) -> str:
    """What is told behind a text."""
    said = f"  {run.say(sample.whole)}" if run.say else ""
    return said + scores(settings, sample)


def scores(settings: SampleSettings, sample: Sample) -> str:
    """How likely a text is, where that was asked for."""
    if sample.score is not None:
        return f"  (score {sample.score:.4f}, log-probability {sum(sample.logprobs):.4f})"
    return f"  (log-probability {sum(sample.logprobs):.4f})" if settings.logprobs else ""


def summarise(run: Trained, new: int, count: int, how: str) -> None:
    """Say how many texts of a list, of all that were drawn or found, are new."""
    share = new / count if count else 0
    print(f"\n{run.folder}: {new} of {count} {how} are new and distinct ({share:.0%}); * is not in the training list")


def described(run: Trained, settings: SampleSettings, sample: Sample) -> dict[str, Any]:
    """The line of JSON for a text."""
    line = {
        "prompt": sample.prompt,
        "text": sample.text,
        "tokens": sample.tokens,
        "logprob": sum(sample.logprobs),
        "finish": sample.finish,
    }
    if settings.logprobs:
        line["logprobs"] = sample.logprobs
    if sample.score is not None:
        line["score"] = sample.score
    if run.seen is not None:
        line["new"] = mark(run, sample.whole) == "*"
    if run.say:
        line["pronunciation"] = run.say(sample.whole)
    return line


# ------------------------------------------------------------------------------------------------------------------------
# Models that write no texts

BY_ALL = ("prompt", "prompt_file", "num_samples", "format", "device", "dtype", "attention", "threads", "run", "out_dir")


def show_answers(task: Task, folder: Path, description: dict[str, Any], settings: SampleSettings) -> None:
    """What the model of this run says of each prompt; without any, of num_samples validation examples."""
    nothing = SampleSettings()
    for f in fields(settings):
        if getattr(settings, f.name) != getattr(nothing, f.name) and f.name not in BY_ALL + task.KNOWS:
            raise UserError(f"--{f.name} means nothing for {folder}, which writes no texts; leave it out")
    device = pick_device(settings.device)
    dtype = torch.float32 if settings.dtype == "auto" else pick_dtype(settings.dtype, device, 1, 1)[0]
    model, tokenizer = checkpoint.load_run(folder, device)
    lay_out(model, dtype)
    model.config.attention = "fused" if settings.attention == "auto" else settings.attention
    torch.set_num_threads(settings.threads or 1)
    prompts = given_prompts(settings)
    if not prompts:
        example = "FILE.png" if tokenizer is None else task.EXAMPLE
        for name in ("format", *task.KNOWS):
            if name not in ("num_samples", "seed") and getattr(settings, name) != getattr(nothing, name):
                raise UserError(f"--{name} is for a --prompt, and there is none; --prompt={example} would do")
        data = data_of(folder, description, f"--prompt={example} would do without")
        print("\n".join(task.samples(model, data, checkpoint.settings_of(folder, description), settings.num_samples)))
        print(f"\n{folder}: examples of its validation split; --prompt={example} asks for others")
    for place, prompt in prompts:
        try:
            for line, record in task.answers(model, tokenizer, description["data"], [prompt], settings):
                print(json.dumps(record, ensure_ascii=False) if settings.format == "jsonl" else line, flush=True)
        except UserError as error:
            raise UserError(f"{place}: {error}; the run is {folder}") from None


def show_stream(run: Trained, settings: SampleSettings, choice: Choice, prompts: Iterable[str], at_once: int) -> None:
    """Print the texts as they come, one after the other. Of a list, the * stands behind a text that is new."""
    prompts, again = tee(prompts)
    count, new = 0, set()
    for _, row in groupby(in_order(written(run, settings, choice, prompts, at_once)), key=lambda piece: piece.token.row):
        if run.seen is None and count:
            print("\n---\n")
        text = next(again)
        print(text, end="", flush=True)
        for piece in row:
            print(piece.text, end="", flush=True)
            text += piece.text
        is_new = run.seen is not None and mark(run, text) == "*"
        print("  *" if is_new else "")
        count += 1
        if is_new:
            new.add(text)
    if run.seen is not None:
        summarise(run, len(new), count, "drawn")


def converse(run: Trained, settings: SampleSettings, choice: Choice) -> None:
    """Ask for a prompt and continue it, until the input ends. Every continuation is another row: asked again, it differs."""
    with contextlib.suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  (input() then has a history, and its line can be edited)
    row = 0
    while sys.stdin is not None:  # closed by the shell
        try:
            prompt = input("> ")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            return print()
        try:
            seen = run.tokenizer.decode(encode_prompt(run.tokenizer, prompt))
            note_length(run, seen)
            print(seen, end="", flush=True)
            for piece in written(run, settings, choice, [seen], first_row=row):
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            pass  # the text ends here
        except UserError as error:
            print(error, end="")
        print("\n")
        row += 1


def show_trace(run: Trained, settings: SampleSettings, choice: Choice, prompt: str) -> None:
    """Print how row 0 comes about; 20 tokens unless max_new_tokens says otherwise."""
    ids = [*run.opening, *encode_prompt(run.tokenizer, prompt)]
    writer = Writer(run.tokenizer, settings.stop, settings.min_new_tokens, ids)
    steps = []
    for step in traced(run.model, ids, settings.max_new_tokens or 20, choice, settings.seed, settings.context == "slide"):
        steps.append(step)
        if step.token != run.tokenizer.boundary_id:
            writer.add(step.token)
        if writer.ended:
            break
    print(trace_table(steps, run.tokenizer))


if __name__ == "__main__":
    run_program(main)
