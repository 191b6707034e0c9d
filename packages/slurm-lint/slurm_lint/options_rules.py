"""Rules about the form of a script and its options, which sbatch may refuse, ignore or misread."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from slurm_lint import options as slurm
from slurm_lint.finding import Edit, Finding, asked
from slurm_lint.job import Job, gpus_on_node
from slurm_lint.options import DASHES, MEMORY, Given, count, gpu_count, names_in, read_options
from slurm_lint.script import DIRECTIVE, Script, split_directive
from slurm_lint.words import nearest

_SHAPING = names_in("""nodes ntasks ntasks-per-node ntasks-per-gpu cpus-per-task gres gpus gpus-per-node gpus-per-task
    time partition mem mem-per-cpu mem-per-gpu signal account array""")
_ALTERNATIVES = ({"gres", "gpus", "gpus-per-node", "gpus-per-task"}, set(MEMORY), {"ntasks", "ntasks-per-node"})
_REFUSED_TOGETHER = (MEMORY, ("gpus-per-task", "ntasks-per-gpu"), ("ntasks-per-node", "ntasks-per-gpu"),
                     ("cpus-per-task", "cpus-per-gpu"))  # fmt: skip
_FEW_MEGABYTES = 256
_NAMES = names_in("partition account qos reservation mail-user wckey constraint nodelist licenses")
_TEXTS = names_in("output error chdir job-name mail-user")
_UNEXPANDED = tuple(re.compile(r"\$\w+|\$\{[^}]*\}?|(?<![\w/])~(?=/)" + more) for more in ("", "|%[a-zA-Z]"))
_UNFILLED_NAME = (
    r"^X?$|(?i:^(your|x{3,}$|placeholder|change_?me|\.{2,}$))|^__\w+__$|^TODO|<(?!\w+\.\w+@)\w.*>|-$|(?<!\$)\{[\s{]*\w|@example\."
    r"|(?i:(^|[-_])(my|some)[-_]?(group|user|account|project|partition|prof|pi|name)\b|^(user_?name|netid|name_?of)\b)"
    r"|(?i:^([a-z]+_)?(account|project|partition|queue|group)_?(name|id|code)$)|^(ACCOUNT|PARTITION|PROJECT|QUEUE)$"
    r"|^\[[a-z_ -]+\]$"
)
_WORD_TO_FILL_IN = re.compile(
    r"(?:/?\b(?:path/to|some/path)/|(?:(?<![\w}.])|(?<=/home))/path_to_)[^\s\"'}]*|[^\s\"'=:]*/xxx+/[^\s\"'}]*|<your[^>]*>|\b(?:[Yy]our|YOUR)[_-]\w+|\bREPLACE_(?:ME|WITH)\b|/your/|\bTODO_\w+"
    r"|\bpath to (?:an?|your) \w+|\[path[- _]to[^\]]*\]|/(?:home|users|scratch)/(?:user_?name|USER_?NAME)\b"
    r"|^([\"'])(?:x{3,}|\[[a-z_ -]+(?:path|name|dir|id|key)\])\1$"
)
_PATH_TO_FILL_IN = r"^[A-Z]+(_(PATH|FILE)|_?DIR)(/.*)?$|(?<!\$)\{\w+\}"
# Matches <NAME>, but not redirections from and to files (`sort <in> out`).
_ANGLED = re.compile(
    r"(?<=[/=:,@-])<\w(?:[\w-]*>|[^<>]*>$)|(?<!\S)<\w*(?:[A-Z_-][\w-]*>(?!\S)|[a-z]>(?=\s*($|[;|)])))"
    r"|(?<=/)<\w[^<>|&;]*>(?=/)|(?<!\S)<\w+(?: \w+)+>(?=\s*$)|<path/to/[^<>]*>|(?<![\w$@'\\])\{[a-z_]\w*\}(?![<>])"
)
# Only capitals, or no blank, indicate a misspelt request. `# sbatch --nodes 2` only documents the script's use.
_ALMOST = re.compile(r"(?:\s*#\s*SBATCH|#(?P<typo>S[BATCH]{4,6}|SB[ATCHatch]{4}|[Ss]batch|BATCH))(?P<rest>\s+-.*)")
_GLUED = re.compile(r"\S#SBATCH(?P<rest>\s+-.*)")  # On a line with two requests, the second is a comment.
_PLACEHOLDER = re.compile(
    r"<[^<>\s][^<>]*>|\{\{.*?\}\}|\$?\{(?!\w+:[-=?+])[^{}]*\}|\[[A-Za-z_ ]+\]|\b(?:XXX+|FIXME|TODO|REPLACE_ME)\b|%\w*\("
)
_JOB_SUFFIXES = (".sbatch", ".slurm", ".job")
_OWN_FOLDER = re.compile(r"(?:(?:dirname|realpath|readlink)\b[^|;]*?\$\{?|\$\{(?=\S*%))(0|BASH_SOURCE)\b")
_TEMPLATE = re.compile(r"\{\{|\{%|%\(\w|<(?:[A-Za-z][\w .-]*|path/to/[^<>]*)>")  # bash cannot parse a template.
_SHEBANGS = (  # Rule, pattern of a wrong first line, its replacement, message.
    ("typographic-dash", rf"(#!\S+\s+)([{DASHES}]+(\S*))", r"\1-\3",
     "{1!r} begins with a typographic dash: the shell reads it as the script to run"),
    ("shebang-words", r"(#!\s*\S*/env)\s+(?!-\S*S)(\S+\s+\S.*)", r"\1 -S \2",
     "env receives {1!r} as one word, and finds no such program"),
    ("shebang-words", r"#!\s*(?:\S*/)?(sbatch|srun|salloc)\b.*", "#!/bin/bash",
     "{0} is the script's interpreter, and submits the same job again"),
)  # fmt: skip


def form(job: Job) -> Iterator[Finding]:
    """no-shebang, shebang-words, dos-line-ends: the first line or the line ends of the script are wrong."""
    script, first = job.script, job.script.first_line
    if not script.complete:
        return
    (number, shebang), options = script.shebang, job.options
    named = script.path.suffix in _JOB_SUFFIXES or options.given or options.problems or any(_passed_over(script))
    if not script.text.startswith("#!") and named:
        message = "the first line does not begin with #!: sbatch refuses the script"
        message += " (a byte order mark precedes it)" if script.text.startswith("\ufeff") else ""
        message += f" (line {number} does: make it the first)" if number > first else ""
        meant = (shebang,) if shebang else ("#!/bin/bash", script.lines[0].lstrip("\ufeff"))
        # Without options of sbatch, the file may be a program in another language, so offer no edit.
        known = (shebang or "#SBATCH" in script.text) and not script.shell.root.has_error
        known = known and len(re.findall("(?m)^#!/", script.text)) < 2  # Not several scripts in a file.
        edit = Edit(number, (), above=(first, shebang), safe=True) if number > first else Edit(first, meant, safe=True)
        yield Finding(first, "no-shebang", message, meant[0], edit if known else None)
    for rule, pattern, instead, message in _SHEBANGS:
        if found := re.match(pattern, shebang):
            edit = Edit(number, (re.sub(pattern, instead, shebang),))
            yield Finding(number, rule, message.format(*found.groups()), edit=edit)
    if "\r\n" in script.text:
        message, fix = r"lines end in \r\n, as on Windows: sbatch refuses the script", r"sed -i 's/\r$//' "
        line = first + script.text.partition("\r\n")[0].count("\n")
        yield Finding(line, "dos-line-ends", message, fix + script.path.name, Edit(0, (), safe=True))


def syntax(job: Job) -> Iterator[Finding]:
    """shell-syntax: `bash -n`, which runs nothing, cannot parse the script. (The grammar accepts a stray `done`.)"""
    script = job.script
    other = re.match(r"#!.*\b(z|k)sh\b", script.shebang[1]) or _TEMPLATE.search(script.text)
    if not script.is_shell or script.expanded or other:
        return
    done = asked(("env", "-i", "bash", "-O", "extglob", "-n"), script.body + "\n")
    said = done.stderr.decode("utf-8", "replace") if done and done.returncode else ""
    if match := re.match(r"bash: line (\d+): (.*)", said):
        line = script.first_line - 1 + min(int(match[1]), len(script.lines))
        yield Finding(line, "shell-syntax", f"bash cannot read the script: {match[2]}")


def continued(job: Job) -> Iterator[Finding]:
    """line-as-command: bash runs as a command a line meant as the rest of a command or as an assignment."""
    for command in (*job.script.commands, *job.inner):
        first, second = [*(word.raw for word in command.words), "", ""][:2]
        source, cause, fix, edit = job.script.source(command.line), " as a command", "", None
        # A name in capitals, or of a variable that the script reads, is not the name of a program.
        called = re.fullmatch(r"[A-Z_][A-Z\d_]*", first) or re.search(rf"\$\{{?{re.escape(first)}\b", job.code)
        kept = any(re.fullmatch(rf'"?\$\{{?{name}\}}?"?', word.raw) for name, word in command.assignments)
        again = [x.line for x in command.words[1:-1] if x.text == command.name and x.line > command.line]
        if kept and re.fullmatch(r'"\$\{?\w+\}?"', first):
            cause, fix = " as a command: put a value with blanks in quotes as a whole", f'NAME="… {first[1:]}'
        elif again and command.name != "echo" and job.script.source(again[0]).strip().startswith(first):
            message = f"the backslash above makes {first} an argument of the {first} before it"
            yield Finding(again[0], "line-as-command", message, "| or && in front of it", certain=False)
            continue
        elif re.match("=(?!=)", second) and re.fullmatch(r"[A-Za-z_]\w*", first) and called:
            cause, fix = f"{cause}: a variable's = must not have blanks beside it", f'{first}="…"'
            changed = re.sub(rf"\b{first}\s+=\s*(?![\s#])", f"{first}=", source, count=1)
            edit = Edit(command.line, (changed,)) if len(command.words) == 2 + (second == "=") else None
        elif first == "~" and source.strip() == "~":
            cause, edit = " as a command; an editor left it there", Edit(command.line, ())
        elif re.match(r"--?[A-Za-z]", first):
            whole = first in source and not command.assignments
            above = job.script.source(command.line - 1).rstrip("\\ \t") if whole else ""
            fix = "end the line above with a backslash, and leave no line between them" if above else ""
            edit = Edit(command.line - 1, (f"{above} \\",)) if above and "#" not in above else None
        else:
            continue
        yield Finding(command.line, "line-as-command", f"bash runs {first}{cause}", fix, edit, cause=cause)


def spooled(job: Job) -> Iterator[Finding]:
    """script-folder: the script uses its own folder, but in a job, this is Slurm's spool folder."""
    known = re.search(r"SLURM_SUBMIT_DIR|\bscontrol show (-\S+ )?job\b|\bsbatch\b", job.code) or job.script.expanded
    for number, line in enumerate(job.code.split("\n"), job.script.first_line):
        found = _OWN_FOLDER.search(line)
        if found and job.options.given and not known and number not in job.script.shell.quoted_lines:
            message = f"Slurm runs a copy of the script: ${found[1]} leads to slurmd's own folder"
            yield Finding(number, "script-folder", message, "$SLURM_SUBMIT_DIR, the folder where sbatch was called")
            return


def words(job: Job) -> Iterator[Finding]:
    """unknown-option, site-option, malformed-option, typographic-dash: words that sbatch or srun refuses."""
    read, known_here = set[int](), {f"--{name}" for name in job.site.options}
    for problem in (each for options in job.components for each in options.problems):
        source = job.script.source(problem.line)
        # Skip a second refused word of a line, and a line with a $, whose value is known only when the shell runs.
        again = problem.rule == "malformed-option" and problem.line in read
        read.add(problem.line)
        if again or (job.script.expanded and "$" in source) or problem.word.partition("=")[0] in known_here:
            continue
        if _PLACEHOLDER.search(source) and problem.rule != "typographic-dash":
            yield _placeholder(problem.line, source)
            continue
        edit = Edit(problem.line, (source.replace(problem.word, problem.instead),)) if problem.instead else None
        fix = f"srun {problem.word} …" if problem.of_srun else ""
        if problem.rule == "malformed-option" and re.match("[^-]", problem.word) and not edit:
            fix = "quotes around a value with blanks, or # before a comment"
        cause = slurm.OF_A_SITE if problem.rule == "site-option" else ""
        certain = False if cause and not slurm.is_of_plugin(problem.word[2:].partition("=")[0]) else None
        yield Finding(problem.line, problem.rule, problem.message, fix, edit, certain, cause=cause)
    for problem in (each for launch in job.steps for layer in launch.layers for each in layer.slurm.problems):
        known = problem.rule in ("typographic-dash", "unknown-option") and not re.search("[$@]", problem.word)
        if known and problem.word.partition("=")[0] not in known_here:
            fix = problem.instead and f"srun … {problem.instead}"
            yield Finding(problem.line, problem.rule, problem.message, fix)


def _placeholder(line: int, source: str, cause: str = " before you submit") -> Finding:
    match = _PLACEHOLDER.search(source)
    what = match[0] if match else source.partition(" #")[0].strip() or "the value"
    return Finding(line, "placeholder", f"fill in {what}{cause}", cause=cause)


def _passed_over(script: Script) -> Iterator[tuple[int, str, list[str], bool, bool]]:
    """Yield lines that look like requests but are not: (line, words, options, whether late, whether misspelt)."""
    last = script.commands[-1].last_line if script.commands else script.first_line + len(script.lines)
    for number, line in enumerate(script.lines, script.first_line):
        late = number > script.first_command
        match, almost = DIRECTIVE.match(line), _ALMOST.fullmatch(line)
        glued = _GLUED.search(line) if match and not late else None
        aside = not match and almost and not almost["typo"] and number > last  # The line is disabled.
        looks = glued or (late and script.is_shell and match) or (not match and almost)
        if number in script.shell.quoted_lines or not looks or aside:
            continue
        words = split_directive(looks["rest"]) or [""]
        options = read_options(words, number, "sbatch")
        # If the line has a word that is not an option (the script's name), it only documents the script's use.
        usage = almost is not None and any("neither an option" in problem.message for problem in options.problems)
        if words[0].startswith("-") and not usage:
            names = [option.name for option in options.given]
            yield number, looks["rest"].strip(), names, late and bool(match), bool(glued or (almost and almost["typo"]))


def ignored(job: Job) -> Iterator[Finding]:
    """ignored-option: sbatch ignores a line that looks like options."""
    passed_over = [*_passed_over(job.script)]
    live = {option.name for options in job.components for option in options.given}
    # A line `# SBATCH` is disabled on purpose if another line sets the same option.
    decided = live.union(*(group for group in _ALTERNATIVES if group & live))
    decided |= _SHAPING if re.search(r"(?i)\b(remove the (white)?space|uncomment)", job.script.text) else set()
    spaced = Counter(name for _, _, names, late, typo in passed_over for name in names if not late and not typo)
    decided |= {name for name, times in spaced.items() if times > 1}
    if not (job.options.given or job.script.path.suffix in _JOB_SUFFIXES or any(late for *_, late, _ in passed_over)):
        return  # The script is not for sbatch, so such lines are examples.
    for number, text, given, late, typo in passed_over:
        names = set(given)
        if not (names - live if late or typo else names & _SHAPING - decided):
            continue
        line, head = f"#SBATCH {text}", job.script.source(number).rpartition("#SBATCH")[0].rstrip()
        moved = Edit(number, (), above=(job.script.first_command, line))
        edit = moved if late else Edit(number, (head, line) if head else (line,))
        cause = "it stops reading at the first command" if late else "it reads only lines that begin with #SBATCH"
        certain, message = late and bool(names & _SHAPING - live), f"sbatch reads nothing on this line: {cause}"
        yield Finding(number, "ignored-option", message, edit=edit, certain=certain, cause=f": {cause}")


def values(job: Job) -> Iterator[Finding]:
    """bad-value, variable-in-option, placeholder: a value that sbatch refuses or does not expand, or a placeholder."""
    for option in (option for options in job.components for option in options.given):
        if job.script.expanded and "$" in option.value:
            continue
        source = job.script.source(option.line)
        refused = option.name in _FORM_OF and _FORM_OF[option.name][0](option.value) is None
        if _to_fill_in(option, refused) and (option.value or re.search(r"=\s*(#.*)?$", source)):
            yield _placeholder(option.line, option.value if refused and "{{" not in option.value else source)
        elif refused:
            yield _refused(job, option)
        elif option.name in _TEXTS and (match := _UNEXPANDED[option.name == "mail-user"].search(option.value)):
            cause = ": it is part of the name"
            message = f"sbatch does not expand {match[0]} in --{option.name}{cause}"
            user = option.name in ("output", "error") and re.match(r"\$\{?(USER|USERNAME|LOGNAME)\b", match[0])
            # Without these variables, the path is relative to the folder where sbatch is called, which is the same.
            here = option.name != "chdir" and re.match(r"\$\{?(PWD|SLURM_SUBMIT_DIR)\b", match[0])
            fixed = source.replace(match[0], "%u") if user else source.replace(match[0] + "/", "") if here else ""
            fix = "the full path" if "/" in option.value else ""
            edit = Edit(option.line, (fixed,)) if fixed else None
            yield Finding(option.line, "variable-in-option", message, fix, edit, cause=cause)


def unfilled(job: Job) -> Iterator[Finding]:
    """Yield `placeholder` for words of commands that must still be filled in. (bash reads <NAME> as redirections.)"""
    lines, quoted = enumerate(job.code.split("\n"), job.script.first_line), job.script.shell.quoted_lines
    bare = ((line, re.sub(r"\"[^\"]*(\"|$)|'[^']*('|$)|\$\{[^}]*\}", "''", text)) for line, text in lines)
    found = [(line, _ANGLED.search(text)) for line, text in bare if line not in quoted]
    for command in (each for each in job.script.commands if each.name not in ("echo", "printf", "[", "[[", "test")):
        words = (*command.words, *(value for _, value in command.assignments))
        found += [(x.line, _WORD_TO_FILL_IN.search(x.raw)) for x in words if not re.search(r":\?|==", x.raw)]
    yield from (_placeholder(line, match[0], " before the job can run") for line, match in found if match)


def _to_fill_in(option: Given, refused: bool) -> bool:
    """Return whether a value is a placeholder. If the option has a fixed format, sbatch must also refuse the value."""
    if not refused:
        name = option.name in _NAMES and re.search(_UNFILLED_NAME, option.value)
        path = _WORD_TO_FILL_IN.search(option.value) or re.search(_PATH_TO_FILL_IN, option.value)
        return bool(name or (option.name in ("output", "error", "chdir") and path))
    form = r"(gpu:)?([A-Z_]+|[A-Za-z]*_\w*|(your|num)\w*)?"
    word = option.name not in ("signal", "array") and re.fullmatch(form, option.value)
    return bool(word or "{{" in option.value or _PLACEHOLDER.search(option.value))


def _refused(job: Job, option: Given) -> Finding:
    value, (read, expected, example) = option.value, _FORM_OF[option.name]
    better = next((each for pattern, new in _MEANT if read(each := re.sub(pattern, new, value))), None)
    edit = job.script.with_option(option.name, better, option.line) if better else None
    fix = f"for example #SBATCH --{option.name}={example}"
    cause = "; sbatch does not expand variables in #SBATCH lines" if "$" in value else ""
    message = f"sbatch refuses --{option.name}={value}: expected {expected}{cause}"
    return Finding(option.line, "bad-value", message, fix, edit, cause=cause)


# The texts that sbatch accepts for times, memory and GPUs.
_MEANT: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = (
    (r"(?i)^(\d+)\s*m(ins?|inutes?)?$", r"\1"), (r"(?i)^(\d+)\s*h(ours?|rs?)?$", r"\1:00:00"),
    (r"(?i)^(\d+)\s*d(ays?)?$", r"\1-00:00:00"), (r"(?i)^(\d+)\s*([mgt])i?b?$", r"\1\2"),
    (r"(?i)^(\d+\.\d+)\s*gi?b?$", lambda found: f"{float(found[1]) * 1024:.0f}M"),
    (r"^gpus?[=:](\d+)$", r"gpu:\1"), (r"^gpus?[=:](\w*[A-Za-z]\w*)[:=](\d+)$", r"gpu:\1:\2"), (r"$", ":1"),
)  # fmt: skip
# A test compares each parser with a real sbatch (tests/launch/slurm/test_lint_against_sbatch.py), which accepts more
# than its manual says: `--time=1:99`, `--mem=4GB`, `--nodes=-1`.
_TIME = re.compile(r"(?i)unlimited|infinite|-\d+|\d+-(\d+(:\d+){0,2})?|\d+(:\d+){0,2}")
_MEMORY = re.compile(r"(?i)\d+([kmgt]b?)?")
_FORMS: Sequence[tuple[str, Callable[[str], object], str, str]] = (  # Options, their parser, the expected form.
    ("nodes", slurm.node_range, "a number, or MIN-MAX", "2"),
    ("""ntasks ntasks-per-node ntasks-per-socket ntasks-per-core ntasks-per-gpu cpus-per-task cpus-per-gpu mincpus
     sockets-per-node cores-per-socket threads-per-core""", count, "a number of at least 1", "4"),
    ("time time-min", _TIME.fullmatch, "minutes, H:MM:SS or D-HH:MM:SS", "1-00:00:00"),
    ("mem mem-per-cpu mem-per-gpu tmp", _MEMORY.fullmatch, "a whole number with K, M, G or T", "64G"),
    ("gres", slurm.gpus_in_gres, "gpu:NUMBER or gpu:TYPE:NUMBER", "gpu:4"),
    ("gpus gpus-per-node gpus-per-task gpus-per-socket", gpu_count, "NUMBER or TYPE:NUMBER", "4"),
    ("signal", slurm.signal_request, "[B:]SIGNAL[@seconds]", "B:USR1@120"),
    ("array", slurm.rising_array, "0-7, 1,3,5 or 0-7%2", "0-7%2"),
)  # fmt: skip
_FORM_OF = {name: form[1:] for form in _FORMS for name in names_in(form[0])}


def together(job: Job) -> Iterator[Finding]:
    """options-contradict, memory-in-megabytes, repeated-option: options that contradict or override each other."""
    steps = ((step.layers[0].slurm, _REFUSED_TOGETHER[:1]) for step in job.steps)
    for options, groups in (*((options, _REFUSED_TOGETHER) for options in job.components), *steps):
        for given in ([option for name in names if (option := options.last(name))] for names in groups):
            if len(given) > 1:
                message = f"Slurm refuses {' and '.join(f'--{option.name}' for option in given)} together"
                yield Finding(max(option.line for option in given), "options-contradict", message, "keep one of them")
    for options, shape in zip(job.components, job.shapes, strict=True):
        for option in (each for each in options.given if each.name != "mail-type"):  # --mail-type may be repeated.
            if (holds := options.last(option.name)) and holds.value != option.value:
                cause = f" is replaced by {holds.value} on line {holds.line}"
                message = f"--{option.name}={option.value}{cause}"
                yield Finding(option.line, "repeated-option", message, "keep one of them", cause=cause)
        for option in (found for name in MEMORY if (found := options.last(name))):
            if re.fullmatch(r"\d+", option.value) and 0 < int(option.value) < _FEW_MEGABYTES:
                message = f"--{option.name}={option.value} is in megabytes, like every number without a unit"
                fix = f"--{option.name}={option.value}G, if gigabytes are meant"
                yield Finding(option.line, "memory-in-megabytes", message, fix)
        per_task, per_job, on_node = options.last("gpus-per-task"), options.last("gpus"), gpus_on_node(options)
        each, total = (gpu_count(options.value(name)) for name in ("gpus-per-task", "gpus"))
        if per_task and not options.last("ntasks", "gpus", "ntasks-per-node", "nodes", "ntasks-per-gpu"):
            message, fix = "sbatch refuses --gpus-per-task without --ntasks or --gpus", "for example #SBATCH --ntasks=4"
            yield Finding(per_task.line, "options-contradict", message, fix, certain=False)  # It may be typed.
        message = ""
        if total and on_node and not per_task and count(options.value("nodes")) and total != on_node * shape.nodes:
            message = f"--gpus={total} contradicts {shape.nodes} nodes × {on_node} GPUs = {on_node * shape.nodes}"
        elif total and each and total % each:
            message = f"--gpus={total} is not a multiple of --gpus-per-task={each}: sbatch refuses them"
        if per_job and message:
            yield Finding(per_job.line, "options-contradict", message, "keep one of them")


def dependency(job: Job) -> Iterator[Finding]:
    """fixed-dependency: a script, which can be submitted many times, depends on the id of one certain job."""
    for options in job.components:
        if (after := options.last("dependency")) and re.search(r"after\w*:\d{4,}", after.value):
            message = f"--dependency={after.value} fits one submission: the next one has no such job to wait for"
            fix = "sbatch --dependency=afterok:$(sbatch --parsable FIRST.sh) SECOND.sh"
            yield Finding(after.line, "fixed-dependency", message, fix)


def site(job: Job) -> Iterator[Finding]:
    """site-partition, site-required: a partition does not exist or an option is missing, according to the site file."""
    given = [option for options in job.components for option in options.given]
    elsewhere = any(option.name == "clusters" for option in given)
    for option in (each for each in given if each.name == "partition" and job.site.partitions and not elsewhere):
        names = [] if "$" in option.value or _to_fill_in(option, False) else option.value.split(",")
        if absent := [name for name in names if name not in job.site.partitions]:
            near = nearest(absent[0], job.site.partitions)
            message = f"this site has no partition {' and '.join(absent)}" + (f"; did you mean {near}?" if near else "")
            yield Finding(option.line, "site-partition", message, f"one of {', '.join(job.site.partitions)}")
    missing = {slurm.SBATCH_SHORT.get(name, name) for name in job.site.required} - {option.name for option in given}
    # A fragment, or a script that another script submits, may get the option from elsewhere.
    if given and missing and job.script.complete and not job.script.outer:
        message = f"this site requires {' and '.join(f'--{name}' for name in sorted(missing))}"
        yield Finding(min(option.line for option in given), "site-required", message)
