"""Networks that timm and torchvision lack, each with timm's classifier contract."""
