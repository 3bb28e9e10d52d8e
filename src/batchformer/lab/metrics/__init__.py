"""What a trained network is judged by. Accuracies are percent, their differences percent points."""
