"""Steps as recorded device work: what a step launches is recorded once per size and then replayed, so that
the host's speed does not limit the device's."""
