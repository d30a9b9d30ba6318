//! A second, small encoder: programs as they are written down in public reverse engineering, by
//! register numbers, so that nothing is shared with the decoder under test.

/// A program under construction: (block, register, value), in order.
#[derive(Clone, Debug)]
pub(crate) struct Listing(pub(crate) Vec<(u16, u16, u32)>);

const CNA: u16 = 0x0201;
const CORE: u16 = 0x0801;
const DPU: u16 = 0x1001;

/// Types of input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Types {
    Int8Int32,
    Int8Int8 { multiplier: u16, shift: u32 },
    Fp16Fp32,
    Fp16Fp16,
    Bf16Fp32,
    Int4Int16,
}

impl Types {
    pub(crate) fn row_bytes(self, k: u32) -> u32 {
        match self {
            Types::Int8Int32 | Types::Int8Int8 { .. } => k,
            Types::Fp16Fp32 | Types::Fp16Fp16 | Types::Bf16Fp32 => 2 * k,
            Types::Int4Int16 => k / 2,
        }
    }

    pub(crate) fn output_bytes(self) -> u32 {
        match self {
            Types::Int8Int32 | Types::Fp16Fp32 | Types::Bf16Fp32 => 4,
            Types::Fp16Fp16 | Types::Int4Int16 => 2,
            Types::Int8Int8 { .. } => 1,
        }
    }

    pub(crate) fn tile(self) -> u32 {
        match self {
            Types::Int8Int32 | Types::Int8Int8 { .. } => 32,
            Types::Fp16Fp32 | Types::Fp16Fp16 | Types::Bf16Fp32 => 16,
            Types::Int4Int16 => 64,
        }
    }
}

/// Shape and addresses of one program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) types: Types,
    pub(crate) m: u32,
    pub(crate) k: u32,
    pub(crate) n: u32,
    pub(crate) input: u32,
    pub(crate) weights: u32,
    pub(crate) output: u32,
}

impl Listing {
    fn put(&mut self, block: u16, register: u16, value: u32) {
        self.0.push((block, register, value));
    }

    /// Overwrites every write of `register`.
    pub(crate) fn patch(&mut self, register: u16, value: u32) {
        for entry in &mut self.0 {
            if entry.1 == register {
                entry.2 = value;
            }
        }
    }

    /// Entries as they lie in memory, with a trailer that names the next program, if any.
    pub(crate) fn bytes(&self, next: Option<(u32, u32)>) -> Vec<u8> {
        let (address, amount) = next.unwrap_or((0, 0));
        let pc = if next.is_some() { (0x0101, 0x10, address) } else { (0, 0, 0) };
        let trailer = [pc, (0x0101, 0x14, amount), (0x0041, 0, 0), (0x0081, 0x08, 0x0d)];
        let mut bytes = Vec::new();
        for (block, register, value) in self.0.iter().chain(&trailer) {
            let bits = u64::from(*block) << 48 | u64::from(*value) << 16 | u64::from(*register);
            bytes.extend_from_slice(&bits.to_le_bytes());
        }
        bytes
    }

    fn zeros(&mut self, block: u16, registers: impl IntoIterator<Item = u16>) {
        for register in registers {
            self.put(block, register, 0);
        }
    }

    /// What both encodings have in common; `rows` is the height that the hardware counts.
    fn common(&mut self, s: Shape, rows: u32, banks: u32) {
        let (k, n, row) = (s.k, s.n, s.types.row_bytes(s.k));
        self.put(DPU, 0x4004, 0x0e);
        self.put(CNA, 0x1010, (rows + 1) << 4);
        self.put(CNA, 0x1014, 9);
        self.put(CNA, 0x1020, 1 << 16 | rows);
        self.put(CNA, 0x1024, (k - 1) << 16 | k);
        self.put(CNA, 0x1028, 1);
        self.put(CNA, 0x102c, rows);
        self.put(CNA, 0x1030, n * row);
        self.put(CNA, 0x1034, row);
        self.put(CNA, 0x1038, 0x0101_0000 | n);
        self.put(CNA, 0x1040, banks);
        self.put(CNA, 0x1044, row.div_ceil(64));
        self.put(CNA, 0x104c, 0x0b);
        for scale in [0x1050, 0x1054, 0x1058, 0x105c] {
            self.put(CNA, scale, 0x1_0000);
        }
        self.zeros(CNA, [0x1060, 0x1064, 0x1068, 0x1074]);
        self.put(CNA, 0x1070, s.input);
        self.put(CNA, 0x1078, 0x000f_000f);
        self.put(CNA, 0x1084, 1 << 16 | rows);
        self.put(CNA, 0x1088, k);
        self.zeros(CNA, [0x1100, 0x1104]);
        self.put(CNA, 0x1110, s.weights);
        self.zeros(CNA, (0x1140..=0x1184).step_by(4));
        self.put(CORE, 0x3014, (rows - 1) << 16);
        self.put(CORE, 0x3018, n - 1);
        self.zeros(CORE, [0x301c, 0x3030]);
        self.put(DPU, 0x400c, 0x1e4);
        self.put(DPU, 0x4020, s.output);
        self.zeros(DPU, [0x4014, 0x4030, 0x4044, 0x4048, 0x404c, 0x4054, 0x4064, 0x4068, 0x406c]);
        self.put(DPU, 0x4034, rows - 1);
        self.put(DPU, 0x4040, 0x53);
        self.put(DPU, 0x4058, n - 1);
        self.put(DPU, 0x4060, 0x53);
        self.put(DPU, 0x4070, 0x383);
        self.put(DPU, 0x4078, 1);
        self.zeros(DPU, [0x4074, 0x407c, 0x4080, 0x40c4]);
        self.zeros(DPU, (0x4090..=0x40ac).step_by(4));
        self.zeros(DPU, (0x4100..=0x412c).step_by(4));
        let (multiplier, shift) = match s.types {
            Types::Int8Int8 { multiplier, shift } => (u32::from(multiplier), shift),
            Types::Fp16Fp16 => (0x1_0001, 0),
            _ => (1, 0),
        };
        self.put(DPU, 0x4084, multiplier);
        self.put(DPU, 0x4088, shift);
    }
}

/// Banks as both encodings choose them.
fn banks(rows: u32, row_bytes: u32) -> u32 {
    let data = (rows * row_bytes).div_ceil(32768);
    (12 - data) << 4 | data
}

/// The row-major encoding: input, and output with rows `stride` elements apart.
pub(crate) fn row_major(s: Shape, stride: u32) -> Listing {
    let row = s.types.row_bytes(s.k);
    let mut l = Listing(Vec::new());
    // Two registers come twice in the field; the earlier values must not count.
    l.put(CNA, 0x1040, 0xb1);
    let (conv, core, format, width, add) = match s.types {
        Types::Int8Int32 => (0x2000_0000, 0x001, 0x8000_0000, 0x7fc, 0x80),
        Types::Int8Int8 { .. } => (0x2000_0000, 0x001, 0, 0x124, 0x20),
        Types::Fp16Fp32 => (0x2000_0120, 0x201, 0xa800_0002, 0x36e, 0x40),
        Types::Fp16Fp16 => (0x2000_0120, 0x201, 0x4800_0002, 0x126, 0x20),
        Types::Bf16Fp32 => (0x2000_01b0, 0x301, 0xac00_0003, 0x36e, 0x40),
        Types::Int4Int16 => unreachable!("int4 has encodings of its own"),
    };
    l.put(CNA, 0x100c, 0xdead_0000);
    l.put(CNA, 0x100c, conv);
    l.common(s, s.m, banks(s.m, row));
    l.put(CNA, 0x107c, row / 16);
    l.put(CNA, 0x1080, 0);
    l.put(CORE, 0x3010, core);
    l.put(DPU, 0x4010, format);
    l.put(DPU, 0x4024, 0x10);
    let atom = 16 / s.types.output_bytes();
    l.put(DPU, 0x4038, (stride / atom - 1) << 16 | (s.n / atom - 1));
    l.put(DPU, 0x403c, (stride - 1) << 16 | (s.n - 1));
    l.put(DPU, 0x4050, width);
    l.put(DPU, 0x405c, (s.m - 1) << 16);
    l.put(DPU, 0x40c0, add);
    l
}

/// The encoding with planes of 16-byte atoms; `m` is 1 or a multiple of 4.
pub(crate) fn planes(s: Shape) -> Listing {
    let row = s.types.row_bytes(s.k);
    let mut l = Listing(Vec::new());
    let (conv, core, format, size_e, add) = match s.types {
        Types::Int8Int32 => (0, 0, 0x8000_0000, 7, 8),
        Types::Fp16Fp32 => (0x120, 0x201, 0xa800_0002, 3, 4),
        Types::Fp16Fp16 => (0x120, 0x201, 0x4800_0002, 1, 2),
        other => unreachable!("no program in the field has planes of {other:?}"),
    };
    l.put(CNA, 0x100c, conv);
    l.common(s, s.m, banks(s.m, row));
    l.put(CNA, 0x107c, 4);
    let surface = if s.m < 4 { -3 } else { 4 * (s.m as i32 / 4 - 1) };
    l.put(CNA, 0x1080, surface as u32 & 0x0fff_ffff);
    l.put(CORE, 0x3010, core);
    l.put(DPU, 0x4010, format);
    l.put(DPU, 0x4024, s.m << 4);
    l.put(DPU, 0x4038, 0);
    l.put(DPU, 0x403c, (s.n - 1) << 16 | (s.n - 1));
    l.put(DPU, 0x4050, size_e << 8 | size_e << 5 | size_e << 2 | 2);
    l.put(DPU, 0x405c, (s.m - 1) << 16);
    l.put(DPU, 0x40c0, (add * s.m) << 4);
    l
}

/// int4: a single row, or a batch whose rows count twice.
pub(crate) fn int4(s: Shape) -> Listing {
    let mut l = Listing(Vec::new());
    let rows = if s.m == 1 { 1 } else { 2 * s.m };
    l.put(CNA, 0x100c, 0x360);
    l.common(s, rows, 0xb1);
    l.put(CNA, 0x107c, if s.m == 1 { 4 } else { s.k / 16 });
    l.put(CNA, 0x1080, 0x0fff_fffd);
    l.put(CORE, 0x3010, 0x601);
    l.put(DPU, 0x4010, 0x3800_0006);
    l.put(DPU, 0x4024, 0x10);
    let notch = if s.m == 1 { 0 } else { s.n / 4 - 1 };
    l.put(DPU, 0x4038, notch << 16 | notch);
    l.put(DPU, 0x403c, (s.n - 1) << 16 | (s.n - 1));
    l.put(DPU, 0x4050, 0x7fe);
    l.put(DPU, 0x405c, 0);
    l.put(DPU, 0x40c0, 0x80);
    l
}
