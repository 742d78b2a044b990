pub struct BootstrapParams;
