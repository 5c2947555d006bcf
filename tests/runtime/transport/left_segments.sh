# Sourced by the tests that end jobs: what they have left in shared memory.

# Other tests have segments too, which their processes use: left is what nobody uses.
unused_segments() {
  local file
  for file in /dev/shm/tf_hvd_*; do
    if [[ -e "${file}" ]] && ! grep -qs "${file##*/}" /proc/[0-9]*/maps; then
      echo "${file}"
    fi
  done
}

# A test that failed some day has left these.
segments_before=$(unused_segments)

# Prints the segments that stay unused; none after 5 seconds at the most.
left_segments() {
  local left attempt
  left=$(comm -13 <(echo "${segments_before}") <(unused_segments))
  for attempt in $(seq 50); do
    [[ -n "${left}" ]] || return 0
    sleep 0.1
    left=$(comm -12 <(echo "${left}") <(unused_segments))
  done
  echo "${left}"
}
