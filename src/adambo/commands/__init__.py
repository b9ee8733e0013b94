"""The commands of `adambo`, one file each: a function of the words after the command, which returns an exit code."""
