"""What a choice must gain, and what is too slow to be looked at further: one table for all choices.

Gains are parts of the time that must be saved. Where both ways are measured in turns, they are what
noise leaves; where one is predicted, or costs memory, they are larger. Ratios say how many times as
long as the best something takes that is left out before it is measured with care.
"""

DRAW = 0.01  # two estimates of a screening that say nothing
KERNEL_GAIN = 0.05  # a kernel over the usual one
PART_GAIN = 0.03  # a plan of several engines, by prediction, over the best of one engine
SIZE_GAIN = 0.05  # a row in a larger batch
PRECISION_GAIN = 0.03  # a narrower precision, which errs more, over the best wider plan
BRANCH_GAIN = 0.15  # lanes beside each other, of all work

CANDIDATE_RATIO = 1.3  # of a plan that takes no part in service ...
RUNTIME_RATIO = 1.7  # ... and of the fastest other runtime, which busy cores slow down less
KERNEL_RATIO = 1.5  # of a kernel
PART_RATIO = 1.3  # of a part in an engine
LANES_RATIO = 1.15  # of lanes that run long parts, by what units one by one take
PRECISION_RATIO = 1.25  # of a precision, by its sequential plan
FIRST_TURNS_RATIO = 1.7  # of a contender in the first two turns: hosts that move cores reorder them
