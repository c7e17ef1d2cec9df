"""What a person or a machine sees of a run: metrics per step, live progress, episodes, the report. Changes nothing."""
