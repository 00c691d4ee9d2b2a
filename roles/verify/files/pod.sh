# Tests a node from inside a pod. Run by sh of busybox in each container of the test pod; prints to the container's termination
# message, which is in the pod's status. The environment has the names: NODE, INSIDE, OUTSIDE, PEER, EXPECTED.
#   sh -c "$SCRIPT" sh serve    answers with the node's name until the pod is deleted
#   sh -c "$SCRIPT" sh write    writes the node's name to the volume
#   sh -c "$SCRIPT" sh look     prints the GPUs that this container can open: "gpu PATH RESULT"
#   sh -c "$SCRIPT" sh reach    also resolves names, asks the pod of another node through its service, reads the volume
set -u
LIMIT=30 # seconds for each test

# The address of a name; busybox prints it in two formats.
address() {
  nslookup "$1" 2>&1 | sed -n '/^Name:/,$ s/^Address[ 0-9]*: *\([0-9a-f.:]*\).*/\1/p' | head -n 1
}

# A device without its driver that the container may open returns an error of the driver; one that it may not open, EPERM.
look() {
  for path in /dev/nvidia[0-9]*; do
    [ -e "$path" ] || continue
    case $( (exec 3<>"$path") 2>&1) in
      *"not permitted"* | *denied*) echo "gpu $path denied" ;;
      *) echo "gpu $path open" ;;
    esac
  done
}

# Prints "NAME ok", or the last error of a command that is repeated until it succeeds.
try() {
  name=$1 began=$(date +%s)
  shift
  until found=$("$@" 2>&1); do
    [ $(($(date +%s) - began)) -lt "$LIMIT" ] || { echo "$name failed: $(echo "$found" | tail -n 1)"; return; }
    sleep 1
  done
  echo "$name ok"
}

resolve() {
  [ -n "$(address "$1")" ] || { echo "$1 does not resolve"; return 1; }
}

ask() {
  at=$(address "$PEER")
  [ -n "$at" ] || { echo "$PEER does not resolve"; return 1; }
  answer=$(wget -q -T 5 -O - "http://$at:8080/") || { echo "no answer from $at"; return 1; }
  [ "$answer" = "$EXPECTED" ] || { echo "$answer answered instead of $EXPECTED"; return 1; }
}

case $1 in
  serve)
    echo "$NODE" >/work/index.html
    exec httpd -f -p 8080 -h /work
    ;;
  write)
    echo "$NODE" >/volume/node
    ;;
  look)
    look >/dev/termination-log
    ;;
  reach)
    {
      look
      try inside resolve "$INSIDE"
      try outside resolve "$OUTSIDE"
      LIMIT=120 # the other pod may still wait for its volume and its image
      try service ask
      [ ! -d /volume ] || try volume grep -qx "$NODE" /volume/node
    } >/dev/termination-log
    ;;
esac
