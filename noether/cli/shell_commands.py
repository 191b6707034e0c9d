"""The command for the shell that commands are typed into."""

from noether.errors import ExitCode


class ShellCommands:
    """Complete what is typed."""

    def completion(self, shell: str) -> int:
        """Print the script by which a shell completes commands, flags, settings, groups, runs and files.

        bash: source <(noether completion bash) in ~/.bashrc; zsh likewise in ~/.zshrc, after compinit; fish:
        noether completion fish > ~/.config/fish/completions/noether.fish

        Args:
            shell: bash, zsh or fish
        """
        from noether.cli.completing import shell_script

        print(shell_script(shell), end="")
        return ExitCode.DONE
