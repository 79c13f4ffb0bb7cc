# shellcheck shell=bash disable=SC2034,SC2059
# map_helper.bash - for tests of d9d-map; load it after helper.

golden=$BATS_TEST_DIRNAME/../golden
cases="dense_untied dense_untied_bf16 dense_tied dense_mha dense_mqa_s1 moe moe_fused moe_sharded
       moe_no_renorm moe_mixed_tied dense_window moe_window"

# st_file FILE HEADER BYTES: a safetensors file with this header and so many bytes of tensors.
st_file() {
    local n=${#2}
    {
        printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x\\0\\0\\0\\0' \
            $((n & 255)) $((n >> 8 & 255)) $((n >> 16 & 255)) $((n >> 24 & 255)))"
        printf '%s' "$2"
        head -c "$3" /dev/zero
    } >"$1"
}
