"""What digit it is, by a Vision Transformer: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, in a minute on two CPU cores."""

dataset = "images"
model = "vit"

# the model
patch_size = 2  # 4 x 4 patches of 2 x 2 pixels
n_layer = 3
n_head = 4
n_embd = 64
norm = "rmsnorm"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"

# the training
dropout = 0.1
label_smoothing = 0.1
warp = 0.15  # 1,295 pictures are few: moved, turned and stretched, each is many
batch_size = 64
max_steps = 1500
optimizer = "muon"
learning_rate = 6e-3
warmup_steps = 100
schedule = "linear"
weight_decay = 0.1
ema = 0.99
eval_interval = 250
