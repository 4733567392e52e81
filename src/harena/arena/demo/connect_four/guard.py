"""Takes four in a row if it can, and the square where the other would have it; else the middle."""

ORDER = (3, 2, 4, 1, 5, 0, 6)
STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))


def act(observation):
    board = [list(map(int, observation[row * 7 : row * 7 + 7])) for row in range(6)]
    free = [column for column in ORDER if board[0][column] == 0]
    for side in (1, -1):
        for column in free:
            row = max(row for row in range(6) if board[row][column] == 0)
            if four(board, row, column, side):
                return column
    return free[0]


def four(board, row, column, side):
    def line(down, right):
        return 1 + run(board, row, column, down, right, side) + run(board, row, column, -down, -right, side)

    return any(line(*step) >= 4 for step in STEPS)


def run(board, row, column, down, right, side):
    length = 0
    while True:
        row, column = row + down, column + right
        if not (0 <= row < 6 and 0 <= column < 7 and board[row][column] == side):
            return length
        length += 1
