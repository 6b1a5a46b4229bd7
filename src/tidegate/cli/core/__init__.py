"""What all commands share: the app, parameters, output, streams, versions."""
