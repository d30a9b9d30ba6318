//! What the one arithmetic of NPU and CPU promises.

use super::{integration, unit};
use crate::promises::Promise;

const CRATE: &str = "ork-linear";

pub(super) const PROMISES: &[Promise] = &[
    Promise {
        says: "a row that is not finite gives NaN, and leaves the others alone",
        file: "ork-linear/src/rows.rs",
        right: "        codes.fill(0);\n        return f32::NAN;",
        wrong: "        codes.fill(0);\n        return 0.0;",
        test: unit(CRATE, "cpu::tests::rows_of_zeros_and_nan"),
    },
    Promise {
        says: "no row of finite values overflows in the transform",
        file: "ork-linear/src/rows.rs",
        right: "        most if most >= FAR => 1.0 / FAR,\n",
        wrong: "",
        test: unit(CRATE, "rows::tests::zeros_huge_and_tiny_rows"),
    },
    Promise {
        says: "who computes does not show: each row has its own scale, and sums are exact",
        file: "ork-linear/src/layers/npu.rs",
        right: "&rows.scales()[first..][..m]);",
        wrong: "&rows.scales()[..m]);",
        test: integration(CRATE, "layers", "a_row_is_the_same_in_every_batch"),
    },
    Promise {
        says: "rows that change are written to the device anew",
        file: "ork-linear/src/layers/npu.rs",
        right: "            stay.rows = None;\n        }\n    }",
        wrong: "            let _ = stay;\n        }\n    }",
        test: integration(CRATE, "layers", "lists_of_two_tiers_get_the_rows_that_each_needs"),
    },
    Promise {
        says: "an NPU that failed computes no more, and what was under way is computed by the CPU",
        file: "ork-linear/src/layers/mod.rs",
        right: "                    self.npu.fail(error);",
        wrong: "                    return Err(error);",
        test: integration(CRATE, "layers", "a_wedged_npu_is_replaced_in_the_middle"),
    },
    Promise {
        says: "a weight that the device cannot take any more is read into memory",
        file: "ork-linear/src/layers/mod.rs",
        right: "                self.store.load(part.item, part.column, &part.layout, &mut self.tiles)?;",
        wrong: "",
        test: integration(CRATE, "layers", "a_wedged_npu_is_replaced_in_the_middle"),
    },
    Promise {
        says: "a list never waits for slots that it holds itself",
        file: "ork-linear/src/layers/npu.rs",
        right: "                    *pin = stay.visit.acquire_ready(part.weight)?;",
        wrong: "                    *pin = None::<Pinned>.filter(|_| part.weight.0 > 0);",
        test: integration(CRATE, "layers", "a_dense_layer_is_four_submits_a_core"),
    },
];
