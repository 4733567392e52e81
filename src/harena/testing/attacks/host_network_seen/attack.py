from attacker import TARGET, escaped, finish


def table(name):
    try:
        with open(f"/proc/net/{name}") as file:
            return file.read()
    except OSError:
        return ""


interfaces = [line.split(":")[0].strip() for line in table("dev").splitlines()[2:]]
if set(interfaces) - {"lo"}:
    escaped(f"interfaces {interfaces}")
if f":{TARGET['tcp_port']:04X} " in table("tcp"):
    escaped("sees the host's TCP listener")
if TARGET["abstract_stream"] in table("unix"):
    escaped("sees the host's abstract sockets")
if table("arp").count("\n") > 1:
    escaped("sees the host's neighbours")
if len(table("route").splitlines()) > 1:
    escaped("has a route")
finish()
