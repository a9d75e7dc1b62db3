"""What the stages do: `run(context)` of the module named as the stage."""
