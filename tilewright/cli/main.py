"""The command line: the table of commands, and the entry point of the console script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tilewright.cli import (
    bench,
    cache,
    calibrate,
    compile,
    demo,
    doctor,
    emulate,
    explain,
    fuse,
    intrinsics,
    layout,
    machines,
    map,
    model,
    opt,
    profile,
    reproduce,
    run,
    schedule_mma,
    search,
    validate_mma_schedule,
    validate_tileflow,
)
from tilewright.cli.console import ending_with_the_reader, guarded, show_json
from tilewright.options import RENAMED

# Of typer's own copy of click, or of click, by typer's version.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

HELP = "Compile tensor programs, from PyTorch and ONNX models to machine code, run them, and see what was decided."

# In the order in which a newcomer meets them.
COMMANDS: tuple[tuple[str, Any, str], ...] = (
    ("demo", demo.demo, demo.EPILOG),
    ("compile", compile.compile_model, compile.EPILOG),
    ("run", run.run, run.EPILOG),
    ("profile", profile.profile, profile.EPILOG),
    ("bench", bench.bench, bench.EPILOG),
    ("explain", explain.explain, explain.EPILOG),
    ("machines", machines.machines, machines.EPILOG),
    ("intrinsics", intrinsics.intrinsics, intrinsics.EPILOG),
    ("map", map.map_operator, map.EPILOG),
    ("model", model.model, model.EPILOG),
    ("fuse", fuse.fuse, fuse.EPILOG),
    ("search", search.search, search.EPILOG),
    ("layout", layout.layout, layout.EPILOG),
    ("schedule-mma", schedule_mma.schedule_mma, schedule_mma.EPILOG),
    ("validate mma-schedule", validate_mma_schedule.validate, validate_mma_schedule.EPILOG),
    ("validate tileflow", validate_tileflow.validate, validate_tileflow.EPILOG),
    ("emulate", emulate.emulate, emulate.EPILOG),
    ("calibrate", calibrate.calibrate, calibrate.EPILOG),
    ("doctor", doctor.doctor, doctor.EPILOG),
    ("opt", opt.opt, opt.EPILOG),
    ("reproduce", reproduce.reproduce, reproduce.EPILOG),
    ("cache", cache.cache, cache.EPILOG),
)

# Commands of two words are subcommands of the first one.
GROUPS = {"validate": "Compare what this compiler deduces or predicts with what was recorded elsewhere."}

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
EXIT = "exit status: 0 ok, 1 the result is negative, 2 bad usage or input, 3 this machine lacks something"


@contextmanager
def _usage_errors(command: str | None, as_json: bool) -> Iterator[None]:
    """With `as_json` a usage error is JSON on stdout too."""
    try:
        yield
    except USAGE_ERROR as error:
        if as_json:
            show_json({"error": {"code": "usage", "where": command, "message": str(error), "help": ""}})
        raise


class _Command(TyperCommand):
    """A command whose usage errors are JSON on stdout too where `--json` is given."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _usage_errors(info_name, "--json" in args):
            for option in args:
                old = option.partition("=")[0].removeprefix("--")
                if option.startswith("--") and old in RENAMED:
                    raise typer.BadParameter(f"--{old} has another name now: --{RENAMED[old]}")
            return super().make_context(info_name, args, parent, **extra)


class _Group(TyperGroup):
    """A group of commands, whose own usage errors are JSON on stdout too where `--json` is given."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _usage_errors(info_name, "--json" in args):
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with _usage_errors(ctx.info_name, "--json" in args):
            return super().resolve_command(ctx, args)


app = typer.Typer(
    name="tilewright",
    cls=_Group,
    help=HELP,
    epilog=EXIT,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tilewright.cli.doctor import version_of

        print(f"tilewright {version_of('tilewright') or '(source tree)'}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    pass


def _register() -> None:
    groups: dict[str, typer.Typer] = {}
    for name, function, epilog in COMMANDS:
        group, _, command = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(cls=_Group, help=GROUPS[group], no_args_is_help=True, rich_markup_mode=None,
                                        pretty_exceptions_enable=False, context_settings=SETTINGS)  # fmt: skip
            app.add_typer(groups[group], name=group)
        target = groups[group] if group else app
        target.command(command, cls=_Command, epilog=epilog)(guarded(function))


_register()


def main() -> None:
    """Entry point of the console script `tilewright`."""
    with ending_with_the_reader():
        app(prog_name="tilewright")


if __name__ == "__main__":
    main()
