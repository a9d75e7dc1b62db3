"""What `tools/gpu_day` is made of: a kit for a bare machine with a GPU, and what is run there.

    command    the command line: prepare, rehearse, run, read
    kit        makes the kit: wheels, core, tree, and a manifest of them
    wheels     packages that the machine lacks
    core       the C++ core for the machine's Python
    rehearsal  runs the kit here, in an environment like the machine's, without a GPU
    install    makes the kit usable on the machine
    stage_list the stages, their limits, and what each needs
    runner     runs stages, each a process of its own, within a budget of seconds
    results    what came of them, in a file that is whole at any moment
    archives   logs and traces, small enough to bring back
    run_stage  the process of one stage
    stage      what a stage is given, and where it says what it found
    stages     what the stages do, a module each
    reading    what passed, what failed, how far figures are from their targets; writes records

What `run` needs before it starts processes is in the standard library alone.
"""
