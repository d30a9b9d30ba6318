//! Quantised files of the hub that are not read as a whole, or in one weight.

use ork_weights::model::{Model, ModelError, OpenOptions};
use std::fs;

/// A folder of the hub with these tensors (name, dtype, shape), their bytes zeros.
fn folder(tensors: &[(&str, &str, &[usize])], config: &str) -> tempfile::TempDir {
    let (mut header, mut at) = (Vec::new(), 0);
    for (name, dtype, shape) in tensors {
        let each = match *dtype {
            "F32" | "I32" | "U32" => 4,
            "F16" | "BF16" => 2,
            _ => 1,
        };
        let end = at + each * shape.iter().product::<usize>();
        header.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let header = format!("{{{}}}", header.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + at, 0);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    if !config.is_empty() {
        fs::write(folder.path().join("config.json"), config).unwrap();
    }
    folder
}

fn open(tensors: &[(&str, &str, &[usize])], config: &str) -> Result<Model, ModelError> {
    Model::open(folder(tensors, config).path(), &OpenOptions::default())
}

const UP: &str = "model.layers.0.mlp.up_proj.weight";

#[test]
fn methods_that_are_not_read_are_named_in_one_line() {
    let up = |end: &str| format!("model.layers.0.mlp.up_proj{end}");
    let whole: (&str, &str, &[usize]) = ("lm_head.weight", "F16", &[64, 64]);
    let (codes, zeros): (&[usize], &[usize]) = (&[8, 64], &[1, 8]);
    for (tensors, says) in [
        (
            vec![(".qweight", "I32", codes), (".qzeros", "I32", zeros), (".g_idx", "I32", &[64])],
            "GPTQ",
        ),
        (vec![(".qweight", "I32", codes), (".qzeros", "I32", zeros)], "AWQ"),
        (
            vec![
                (".weight", "U8", &[2048, 1][..]),
                (".weight.absmax", "F32", &[64]),
                (".weight.quant_state.bitsandbytes__nf4", "U8", &[90]),
            ],
            "bitsandbytes",
        ),
        (
            vec![
                (".weight_packed", "I32", codes),
                (".weight_scale", "F16", &[64, 1]),
                (".weight_shape", "I32", &[2]),
            ],
            "compressed-tensors",
        ),
        (vec![(".weight", "U32", &[64, 8][..]), (".scales", "F16", &[64, 1])], "MLX"),
        (vec![(".q_weight", "I32", codes)], "EXL2"),
    ] {
        let names: Vec<String> = tensors.iter().map(|(end, ..)| up(end)).collect();
        let own =
            tensors.iter().zip(&names).map(|((_, dtype, shape), name)| (&**name, *dtype, *shape));
        let all: Vec<_> = own.chain([whole]).collect();
        let text = open(&all, "").unwrap_err().to_string();
        assert!(text.contains(says) && text.contains("or a GGUF of it"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}

#[test]
fn codes_whose_scales_do_not_fit_are_refused_by_name() {
    let scale = "model.layers.0.mlp.up_proj.weight_scale";
    let zero = "model.layers.0.mlp.up_proj.weight_zero_point";
    for (tensors, says) in [
        (vec![(UP, "I8", &[64, 64][..])], "without scales"),
        (vec![(UP, "I8", &[64, 64]), (scale, "F32", &[63, 1])], "64 × 64 with scales of 63 × 1"),
        (vec![(UP, "F8_E4M3", &[64, 64]), (scale, "I32", &[64, 1])], "which do not fit"),
        (vec![(UP, "F8_E4M3", &[64, 64]), (scale, "F32", &[7, 9])], "which do not fit"),
        (
            vec![(UP, "I8", &[64, 64]), (scale, "F32", &[64, 1]), (zero, "I8", &[64, 1])],
            "zero points",
        ),
    ] {
        let error = open(&tensors, "").unwrap_err();
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(UP), "{text}");
    }
}

#[test]
fn config_json_names_the_block() {
    let inverse = "model.layers.0.mlp.up_proj.weight_scale_inv";
    let tensors: [(&str, &str, &[usize]); 2] =
        [(UP, "F8_E4M3", &[100, 100]), (inverse, "F32", &[3, 3])];
    assert!(open(&tensors, "").is_err()); // 128 are one, and 3 divides no 100
    let config = r#"{"quantization_config":{"weight_block_size":[48,40]}}"#;
    let model = open(&tensors, config).unwrap();
    assert_eq!((model.weights()[0].k, model.weights()[0].n), (100, 100));
    // One that says what cannot be, or is damaged, is as if it were not there.
    for config in [r#"{"quantization_config":{"weight_block_size":[0,0]}}"#, "{", "[]"] {
        assert!(open(&tensors, config).is_err());
    }
}
