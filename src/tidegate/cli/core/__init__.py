"""The shared parts of all commands: the app, parameters, output, streams, versions."""
