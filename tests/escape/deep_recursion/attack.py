def down():
    down()


down()
