"""The command `tilewright`: one file per family of commands, registered in `main`."""
