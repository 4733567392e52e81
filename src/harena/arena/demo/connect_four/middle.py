"""Plays as near to the middle as it can.

The observation is 42 numbers, row by row from the top: 1 mine, -1 theirs, 0 empty. The action is a column, 0 to 6.
"""


class Agent:
    def act(self, observation):
        free = [column for column in range(7) if observation[column] == 0]
        return min(free, key=lambda column: abs(column - 3))
