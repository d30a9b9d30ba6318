//! Structs by name: which field lies where.

/// A field: name, offset, bytes.
pub(crate) type Field = (&'static str, usize, usize);

const ACTION: &[Field] = &[("flags", 0, 4), ("value", 4, 4)];
const SUBMIT: &[Field] = &[
    ("flags", 0, 4),
    ("timeout", 4, 4),
    ("task_start", 8, 4),
    ("task_number", 12, 4),
    ("task_counter", 16, 4),
    ("priority", 20, 4),
    ("task_obj_addr", 24, 8),
    ("iommu_domain_id", 32, 4),
    ("reserved", 36, 4),
    ("task_base_addr", 40, 8),
    ("hw_elapse_time", 48, 8),
    ("core_mask", 56, 4),
    ("fence_fd", 60, 4),
];
/// Where the pairs of SUBMIT's `subcore_task` lie.
pub(crate) const SUBCORES: usize = 64;
const MEM_CREATE: &[Field] = &[
    ("handle", 0, 4),
    ("flags", 4, 4),
    ("size", 8, 8),
    ("obj_addr", 16, 8),
    ("dma_addr", 24, 8),
    ("sram_size", 32, 8),
    ("iommu_domain_id", 40, 4),
    ("core_mask", 44, 4),
];
const MEM_MAP: &[Field] = &[("handle", 0, 4), ("reserved", 4, 4), ("offset", 8, 8)];
const MEM_DESTROY: &[Field] = &[("handle", 0, 4), ("reserved", 4, 4), ("obj_addr", 8, 8)];
const MEM_SYNC: &[Field] =
    &[("flags", 0, 4), ("reserved", 4, 4), ("obj_addr", 8, 8), ("offset", 16, 8), ("size", 24, 8)];
const GEM_CLOSE: &[Field] = &[("handle", 0, 4), ("pad", 4, 4)];
const PRIME: &[Field] = &[("handle", 0, 4), ("flags", 4, 4), ("fd", 8, 4)];

const VERSION: &[Field] = &[
    ("version_major", 0, 4),
    ("version_minor", 4, 4),
    ("version_patchlevel", 8, 4),
    ("name_len", 16, 8),
    ("date_len", 32, 8),
    ("desc_len", 48, 8),
];
const GET_CAP: &[Field] = &[("capability", 0, 8), ("value", 8, 8)];
const CREATE_DUMB: &[Field] = &[
    ("height", 0, 4),
    ("width", 4, 4),
    ("bpp", 8, 4),
    ("flags", 12, 4),
    ("handle", 16, 4),
    ("pitch", 20, 4),
    ("size", 24, 8),
];

/// The fields of a call's struct; none for a call of no struct.
pub(crate) fn fields(op: &str) -> &'static [Field] {
    match op {
        "ACTION" => ACTION,
        "SUBMIT" => SUBMIT,
        "MEM_CREATE" => MEM_CREATE,
        "MEM_MAP" | "MAP_DUMB" => MEM_MAP,
        "MEM_DESTROY" => MEM_DESTROY,
        "MEM_SYNC" => MEM_SYNC,
        "GEM_CLOSE" => GEM_CLOSE,
        "VERSION" | "DRM_VERSION" => VERSION,
        "GET_CAP" => GET_CAP,
        "CREATE_DUMB" => CREATE_DUMB,
        "DESTROY_DUMB" => &[("handle", 0, 4)],
        "PRIME_HANDLE_TO_FD" | "PRIME_FD_TO_HANDLE" => PRIME,
        _ => &[],
    }
}

/// Reads a field.
pub(crate) fn get(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(field) = bytes.get(at..at + len) {
        word[..len].copy_from_slice(field);
    }
    u64::from_le_bytes(word)
}

/// Writes a field.
pub(crate) fn put(bytes: &mut [u8], at: usize, len: usize, value: u64) {
    if let Some(field) = bytes.get_mut(at..at + len) {
        field.copy_from_slice(&value.to_le_bytes()[..len]);
    }
}
