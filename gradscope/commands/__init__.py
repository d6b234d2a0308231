"""One file per command: parse, call the api, write once. The file's name is the command's."""
