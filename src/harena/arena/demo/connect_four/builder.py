"""Builds one tower: the same column until it is full."""


class Agent:
    def reset(self):
        self.column = 2

    def act(self, observation):
        while observation[self.column] != 0:
            self.column = (self.column + 1) % 7
        return self.column
